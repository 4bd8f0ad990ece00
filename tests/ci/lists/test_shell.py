"""pytest's calls within shell text, and what `-k` leaves out."""

import pytest

from kvreg.ci.lists.shell import calls, negated_words

ID = "tests/a.py::test_b[x-1]"


@pytest.mark.parametrize(
    "text",
    [
        f"pytest a.py --deselect={ID}",
        f"pytest a.py --deselect {ID}",
        f'pytest a.py --deselect="{ID}"',
        f"pytest a.py '--deselect={ID}'",
        f"pytest a.py \\\n  --deselect={ID}",
        f"pytest a.py --dese\\\nlect={ID}",
        f"A=1 B='c d' python3 -m pytest -v a.py --deselect={ID}",
        f"timeout 60 /usr/bin/pytest --deselect={ID} a.py",
        f"bash run.sh 'pytest a.py --deselect=\"{ID}\"'",
        f'bash -c "pytest a.py --deselect=\\"{ID}\\""',
        f"(pytest a.py --deselect={ID})",
        f"if [ $A = 1 ]; then pytest a.py --deselect={ID}; fi",
        f"echo pytest is next; pytest a.py --deselect={ID}",
        f"pytest a.py -m 'not slow' -n 2 --deselect={ID}  # pytest --deselect=other",
        f"pytest a.py --deselect={ID} 2>&1 | tee log",
        f"pytest a.py --deselect='{ID}",
    ],
)
def test_a_deselection_is_found_however_it_is_written(text):
    (found,) = [call for call in calls(text) if call.deselected]

    assert (found.deselected, found.paths[:1]) == ((ID,), ("a.py",))


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("pytest a", [""]),
        ("cd tests && pytest a && cd kernels; pytest b", ["tests", "tests/kernels"]),
        ("cd tests\ncd ..\npytest a", [""]),
        ("bash run.sh 'cd tests && pytest a' && pytest b", ["tests", ""]),
        ("pip install pytest", []),
        ("# pytest a", []),
    ],
)
def test_a_call_knows_the_folder_that_cd_has_led_to(text, folders):
    assert [call.folder for call in calls(text)] == folders


@pytest.mark.parametrize(
    ("text", "swallowed"),
    [("pytest a || true", True), ("(pytest a || :)", True), ("pytest a || exit 1", False), ("pytest a; true", False)],
)
def test_a_failure_that_is_swallowed_is_seen(text, swallowed):
    assert [call.swallowed for call in calls(text)] == [swallowed]


def test_options_are_told_from_paths():
    (call,) = calls("pytest -v -s x --ignore=a --ignore b -k 'not c' -n 4 -p no:d --timeout 5 y::z")

    assert (call.paths, call.ignored, call.keyword) == (("x", "y::z"), ("a", "b"), "not c")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("not a", ("a",)),
        ("not a and not b", ("a", "b")),
        ("not (a) and not b", ("a", "b")),
        ("rocm", ()),
        ("(rocm) and not a", ("a",)),
        ("not (a or b)", ("not (a or b)",)),
        ("a or not b", ("a or not b",)),
        ("nothing and knot", ()),
    ],
)
def test_a_keyword_leaves_out_what_it_negates(expression, words):
    assert negated_words(expression) == words
