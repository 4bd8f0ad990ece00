"""`--kvreg-audit` on real suites: what it fails, what it leaves alone, and what it says."""

from __future__ import annotations

import pytest
import torch

from kvreg.pytest.comparisons import KNOWN, pairs

CONFTEST = """\
import numpy as np
from numpy.testing import assert_allclose as bound_early


def asks(rows):
    return np.allclose(rows, rows, atol=5.0)
"""


@pytest.fixture(scope="module")
def of_numpy(suite):
    """The suite of numpy's comparisons."""
    suite.take("audited.py", "test_audited.py")
    suite.write("conftest.py", CONFTEST)
    return suite


@pytest.fixture(scope="module", params=[(), ("-n2",)], ids=["one process", "xdist"])
def ran(request, of_numpy):
    """That suite under the audit."""
    return of_numpy.run("--kvreg-audit", "--kvreg-platform=cpu", "test_audited.py", *request.param)


def test_exactly_the_unsound_comparisons_fail(ran):
    due = {"test_sound": "passed", "test_unsound": "failed", "test_failing": "failed"}

    assert ran.code == 1
    assert len(ran.outcomes) == 20
    assert {**ran.outcomes, "test_unsound_fixture": "failed"} == {
        name: due["_".join(name.split("_")[:2])] for name in ran.outcomes
    }
    assert ran.outcomes["test_unsound_fixture"] == "error"


def test_each_finding_says_what_would_pass_and_how_wide_is_sound(ran):
    found = {each["test"].split("::")[1]: each for each in ran.report["audit"]["findings"]}

    assert set(found) == {name for name in ran.outcomes if name.startswith("test_unsound")} - {
        "test_unsound_marked_without_a_reason"
    }
    assert found["test_unsound_zeros"]["passes"] == ["zeros", "the mean", "the mean row", "shuffled rows"]
    assert found["test_unsound_mean"]["passes"] == ["the mean", "the mean row", "shuffled rows"]
    assert found["test_unsound_shuffled"]["passes"] == ["the mean row", "shuffled rows"]
    assert found["test_unsound_uncorrelated"]["correlation"] < 0.99
    for each in found.values():
        assert 0.1 * each["deviation"] < each["widest_atol"] <= 0.1411 * each["deviation"]
        assert each["where"].startswith(("test_audited.py:", "conftest.py:"))
        assert f"the widest sound tolerance is atol={each['widest_atol']:g}, rtol=0" in ran.output


def test_what_fails_by_itself_is_not_judged(ran):
    assert "Not equal to tolerance" in ran.test("test_failing_by_itself")["message"]
    assert "proves nothing" not in ran.test("test_failing_by_itself")["message"]


def test_exempt_comparisons_are_counted_by_rule(ran):
    assert ran.report["audit"]["exempt"] == {
        "integers or booleans": 1,
        "fewer than 8 finite elements": 1,
        "expected is zero everywhere": 1,
        "marked kvreg_unaudited: only the order of magnitude is known": 1,
    }
    assert "4 exempt (" in ran.output


def test_a_mark_without_a_reason_fails(ran):
    assert "required a reason" in ran.test("test_unsound_marked_without_a_reason")["message"]


def test_without_the_option_nothing_is_judged(of_numpy):
    code, output = of_numpy.plain("test_audited.py", "-k", "unsound and not awaited")

    assert code == 0, output


@pytest.fixture(scope="module")
def known_case(suite):
    """The known case under the audit."""
    suite.take("known_case.py", "test_known_case.py")
    return suite.run("--kvreg-audit", "test_known_case.py")


@pytest.mark.parametrize("tolerance", ["0.5", "1.1"])
def test_unrotated_int4_is_caught_where_its_tolerance_takes_it(known_case, tolerance):
    findings = {each["test"].split("::")[1]: each for each in known_case.report["audit"]["findings"]}
    tests = [name for name in known_case.outcomes if f"[unrotated-{tolerance}-" in name]

    assert len(tests) == 3
    for name in tests:
        assert known_case.outcomes[name] == "failed"
        # What the wide tolerance does not take fails by itself.
        assert name in findings or "not close" in known_case.test(name)["message"]
    taken = [findings[name] for name in tests if name in findings]
    assert len(taken) == 3 if tolerance == "1.1" else taken
    for finding in taken:
        assert "zeros" in finding["passes"]
        assert abs(finding["correlation"]) < 0.2
        assert finding["widest_atol"] < 0.05


def test_rotated_int4_passes_at_5e_2_and_the_audit(known_case):
    tests = [name for name in known_case.outcomes if "[rotated-0.05-" in name]

    assert len(tests) == 3
    assert {known_case.outcomes[name] for name in tests} == {"passed"}


def test_unrotated_int4_fails_at_5e_2_and_without_a_scale(known_case):
    assert {
        known_case.outcomes[name]
        for name in known_case.outcomes
        if "[unrotated-0.05-" in name or name.startswith("test_scale_free[unrotated-")
    } == {"failed"}
    assert {
        known_case.outcomes[name] for name in known_case.outcomes if name.startswith("test_scale_free[rotated-")
    } == {"passed"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_of_a_list_torch_compares_tensors_one_by_one_but_numbers_are_judged_together(dtype):
    (assert_close,) = [each for each in KNOWN if each.takes_apart]
    rows = torch.arange(64, dtype=dtype).reshape(4, 16)

    def shapes(*compared):
        return [pair and (pair.actual.shape, pair.expected.shape) for pair in pairs(assert_close, compared, {})]

    assert shapes(list(rows), list(rows)) == [((16,), (16,))] * 4
    assert shapes({"x": list(rows.ravel())}, {"x": list(rows.ravel())}) == [((64,), (64,))]
    assert shapes(rows.ravel().tolist(), rows.ravel().tolist()) == [((64,), (64,))]
