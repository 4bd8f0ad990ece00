"""`kvreg evidence` as a process: what is on record, how to reproduce it, and every way in which it can be unsound."""

import pytest

from kvreg.core.kernelhash import kernel_hash
from kvreg.core.registry import backends

INT4 = "int4_per_token_head"


@pytest.fixture
def cuda_variants():
    return next(backend for backend in backends() if backend.name == "cuda").variants()


@pytest.fixture
def record(home, trace_maker, cuda_variants):
    """Record a B200's validation of the int4 decode variant in the overlay; returns the trace's path."""

    def make(**changed):
        variant = next(each for each in cuda_variants if each.op == "decode" and each.mode == INT4)
        values = {"head_size": 96, "kernel_hash": kernel_hash(variant), **changed}
        return trace_maker(home / "evidence", variant, "cuda", "b200", "sm_100", **values)

    return make


def overlay_ids(kvreg):
    """Return the ids of the overlay's records; shipped ones may stand beside them."""
    document = kvreg("evidence", "list", "--device", "b200", "--json").document
    return [each["id"] for each in document["evidence"]]


def test_list_shows_each_record_with_its_tier_and_state(kvreg, record):
    record()

    answer = kvreg("evidence", "list", "--device", "b200")

    assert (answer.code, answer.err) == (0, "")
    row = answer.out.splitlines()[1]
    assert row.startswith("b200-int4_per_token_head-d96-decode-")
    for word in ("triton-int4-decode@1", "measured", "e 2.0e-03", "3", "current"):
        assert word in row
    assert answer.out.splitlines()[-1].startswith("kvreg evidence show b200-")


@pytest.mark.parametrize(
    ("arguments", "count"),
    [(("--mode", INT4), 1), (("--mode", "none"), 0), (("--device", "NVIDIA B200"), 1), (("--device", "t4"), 0)],
)
def test_list_filters_by_mode_and_by_any_name_of_a_device(kvreg, record, arguments, count):
    record()

    document = kvreg("evidence", "list", *arguments, "--json").document

    assert len([each for each in document["evidence"] if each["device"] == "b200"]) == count


def test_list_of_nothing_says_so(kvreg):
    answer = kvreg("evidence", "list", "--device", "t4")

    assert answer.code == 0
    assert "no validation is on record" in answer.out


def test_list_marks_a_record_of_another_kernel_as_stale(kvreg, record):
    record(kernel_hash="0" * 64)

    (only,) = kvreg("evidence", "list", "--device", "b200", "--json").document["evidence"]

    assert (only["state"], only["tier"]) == ("stale", "measured")


def test_show_ends_with_the_command_that_reproduces_it(kvreg, record):
    record()
    (trace_id,) = overlay_ids(kvreg)

    answer = kvreg("evidence", "show", trace_id)

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == f"{trace_id}: triton-int4-decode@1, measured, current"
    assert answer.out.splitlines()[-1] == "kvreg validate --device b200 --mode int4_per_token_head --head-size 96"
    for word in ("3 seeds", "seed 2", "max_rel_error 0.005", "sha256", "d96-decode-triton-int4-decode.jsonl.gz"):
        assert word in answer.out


def test_show_takes_the_start_of_an_id(kvreg, record):
    record()
    (trace_id,) = overlay_ids(kvreg)

    document = kvreg("evidence", "show", "b200-int4", "--json").document

    assert document["trace"]["id"] == trace_id
    assert document["problems"] == []


def test_show_of_an_unknown_id_offers_the_nearest(kvreg, record):
    record()

    answer = kvreg("evidence", "show", "b200-int4_per_token_head-d96-decode-ffffffff")

    assert (answer.code, answer.out) == (2, "")
    # Shipped records of the same mode and size may be as near as this one.
    assert "d96-decode-" in answer.err.partition("did you mean ")[2]


def test_show_of_an_ambiguous_start_lists_them(kvreg, record):
    record()
    record(head_size=128)

    answer = kvreg("evidence", "show", "b200-int4", "--json")

    assert answer.code == 2
    assert len(answer.document["error"]["candidates"]) == 2


def checked(kvreg, *arguments):
    """Return the exit code and the findings about the overlay's B200."""
    answer = kvreg("evidence", "check", "--device", "b200", *arguments, "--json")
    assert answer.err == ""
    return answer.code, answer.document["findings"]


def test_sound_records_pass_the_strict_check(kvreg, record):
    record()

    assert checked(kvreg, "--strict") == (0, [])


@pytest.mark.long
def test_a_cross_build_without_the_numerics_that_it_names_is_no_sound_record(kvreg, record):
    basis = {"id": "interpreter-int4_per_token_head-d96-decode-00000000", "digest": "0" * 64}
    record(numerics="interpreter", build="cross", speed="none", timings=[], basis=basis)

    code, (finding,) = checked(kvreg)

    assert (code, finding["kind"]) == (4, "edited")
    assert finding["problem"] == f"its numerics, {basis['id']}, are gone"


def test_a_stale_record_is_a_warning_and_a_finding_when_strict(kvreg, record):
    record(kernel_hash="0" * 64)

    relaxed, found = checked(kvreg)
    strict, _ = checked(kvreg, "--strict")

    assert (relaxed, strict) == (0, 4)
    assert found[0]["kind"] == "stale"
    assert "kernel 00000000, now " in found[0]["problem"]


def edit_trace(path):
    path.write_text(path.read_text().replace("max_rel_error: 0.002", "max_rel_error: 0.001"))


def edit_log(path):
    log = path.with_suffix("").with_suffix(".jsonl.gz")
    log.write_bytes(log.read_bytes()[:-1])


def lose_log(path):
    path.with_suffix("").with_suffix(".jsonl.gz").unlink()


def spoil(path):
    path.write_text("schema: 1\nid: [")


def move(path):
    place = path.parent.parent / "none" / path.name
    place.parent.mkdir()
    for each in list(path.parent.iterdir()):
        each.rename(place.parent / each.name)


@pytest.mark.parametrize("edit", [edit_trace, edit_log, lose_log, spoil, move])
def test_an_edited_record_always_ends_with_4(kvreg, record, edit):
    edit(record())

    code, found = checked(kvreg)

    assert code == 4
    assert [each["kind"] for each in found] == ["edited"]


def test_an_edited_record_is_named_on_its_line(kvreg, record):
    path = record()
    edit_trace(path)

    answer = kvreg("evidence", "check", "--device", "NVIDIA B200")

    assert answer.code == 4
    assert f"edited: {path}: digest" in answer.out
    assert answer.out.endswith("1 record: 0 sound, 0 stale, 1 edited\n")
    assert "Traceback" not in answer.err


def test_a_record_of_a_variant_that_is_gone_is_stale(kvreg, home, trace_maker, cuda_variants):
    from dataclasses import replace

    from kvreg.core.variants import VariantId

    gone = replace(cuda_variants[0], id=VariantId("long-gone", 1))
    trace_maker(home / "evidence", gone, "cuda", "b200", "sm_100", kernel_hash="0" * 64)

    _, found = checked(kvreg)

    assert found[0]["problem"] == "long-gone@1 is no variant now"


@pytest.mark.parametrize(
    "command", [("list",), pytest.param(("check",), marks=pytest.mark.long), ("show", "b200-int4")]
)
def test_evidence_loads_no_torch(kvreg, record, command):
    record()
    at_exit = (
        "import atexit; atexit.register(lambda: print('loaded:', "
        "[name for name in ('torch', 'triton', 'numpy') if name in sys.modules], file=sys.stderr))"
    )

    answer = kvreg("evidence", *command, before=at_exit)

    assert answer.code == 0
    assert answer.err.strip() == "loaded: []"


@pytest.mark.parametrize("spoiled", [edit_trace, lose_log, spoil])
def test_a_broken_record_is_listed_with_its_problem_and_shown_by_its_place(here, record, spoiled):
    path = record()
    spoiled(path)

    listed = here("evidence", "list", "--device", "b200")
    document = here("evidence", "list", "--device", "b200", "--json").document
    shown = here("evidence", "show", "b200-int4_per_token_head-d96-decode")

    assert (listed.code, listed.out.splitlines()[-1]) == (0, "kvreg evidence check")
    assert "broken: b200-int4_per_token_head-d96-decode: " in listed.out
    assert str(path) in listed.out
    assert document["evidence"] == []
    (broken,) = document["broken"]
    assert (broken["name"], broken["file"]) == ("b200-int4_per_token_head-d96-decode", str(path))
    if spoiled is spoil:
        assert (shown.code, shown.out) == (2, "")
        assert str(path) in shown.err
    else:
        assert shown.code == 0
        assert ", broken: " in shown.out.splitlines()[0]


def test_broken_records_of_other_devices_and_modes_are_left_out(here, record):
    edit_trace(record())

    for others in (("--device", "t4"), ("--device", "b200", "--mode", "none")):
        assert here("evidence", "list", *others, "--json").document["broken"] == []


def test_the_device_of_the_environment_is_the_one_listed_and_a_wrong_one_an_error(here, record, monkeypatch):
    record()
    monkeypatch.setenv("KVREG_DEVICE", "NVIDIA B200")
    answer = here("evidence", "list")
    assert answer.out.splitlines()[0] == "records of b200 only, as KVREG_DEVICE says"
    assert "h200-" not in answer.out

    monkeypatch.setenv("KVREG_DEVICE", "b2000")
    wrong = here("evidence", "list")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("kvreg: KVREG_DEVICE: device 'b2000': required ")
