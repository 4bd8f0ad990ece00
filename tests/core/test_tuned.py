"""Which tuned entry a variant gets: precedence, buckets, and every mismatch that keeps an entry out."""

import os
from pathlib import Path

import pytest
import yaml

from kvreg.core.requests import Op

INT4 = "int4_per_token_head"
NEED, LIMIT = 147456, 101376
"""Handed case 10: an entry that needs more shared memory than the card has, bytes."""


@pytest.fixture
def measured(workshop):
    workshop.validate("alpha")
    return workshop


def decode(workshop, device="alpha", **asked):
    return workshop.ask(device, INT4, 96, **asked).result.ops[Op.DECODE]


def notes(workshop, device="alpha", **asked):
    return {note.code: note.text for note in workshop.ask(device, INT4, 96, **asked).result.notes}


def test_without_an_entry_the_variants_default_serves(measured):
    chosen = decode(measured)

    assert (chosen.config, chosen.config_source, chosen.file) == ({"tile": 32}, "default", None)
    assert chosen.default_config is None


def test_the_entry_of_the_bucket_itself_is_tuned(measured):
    path = measured.tune("alpha", {"bucket": "b64-c8192", "config": {"tile": 1}}, {"bucket": "b32-c8192"})

    chosen = decode(measured, batch=17)

    assert (chosen.config, chosen.config_source, chosen.file) == ({"tile": 128}, "tuned", str(path))
    assert chosen.default_config == {"tile": 32}


def test_the_next_larger_bucket_stands_in(measured):
    measured.tune(
        "alpha",
        {"bucket": "b16-c8192", "config": {"tile": 1}},
        {"bucket": "b64-c16384", "config": {"tile": 2}},
        {"bucket": "b32-c16384", "config": {"tile": 3}},
    )

    chosen = decode(measured)

    assert (chosen.config, chosen.config_source) == ({"tile": 3}, "bucket")


def test_a_smaller_bucket_never_stands_in(measured):
    measured.tune("alpha", {"bucket": "b16-c8192"})

    assert decode(measured).config_source == "default"


@pytest.mark.parametrize(
    "entry",
    [
        {"variant": "toy-int4-decode@2"},
        {"op": "prefill"},
        {"mode": "none"},
        {"head_size": 128},
        {"group": 1},
        {"page": 32},
        {"dtype": "fp16"},
        {"layout": "inline.1"},
        {"features": ["causal", "window"]},
    ],
    ids=lambda entry: next(iter(entry)),
)
def test_an_entry_of_another_shape_does_not_serve(measured, entry):
    measured.tune("alpha", entry)

    assert decode(measured).config_source == "default"


def test_a_writes_entry_serves_every_group(measured):
    write = {"variant": "toy-int4-write@1", "op": "write", "bucket": "t32", "config": {"tile": 9}}
    measured.tune("alpha", {**write, "group": 1})

    assert measured.ask("alpha", INT4, 96).result.ops[Op.WRITE].config == {"tile": 9}


OVERLAY, SHIPPED = True, False
OWN, LARGER = "b32-c8192", "b64-c8192"
PRECEDENCE = [
    ("measured", OVERLAY, OWN),
    ("measured", OVERLAY, LARGER),
    ("measured", SHIPPED, OWN),
    ("measured", SHIPPED, LARGER),
    ("estimated", OVERLAY, OWN),
    ("estimated", OVERLAY, LARGER),
    ("estimated", SHIPPED, OWN),
    ("estimated", SHIPPED, LARGER),
]
"""(source, place, bucket), first come first served; behind the last one stands the variant's default."""


def state(source, bucket):
    return "estimated" if source == "estimated" else "tuned" if bucket == OWN else "bucket"


@pytest.mark.parametrize("gone", range(len(PRECEDENCE) + 1))
def test_precedence(measured, gone):
    # A file holds one entry of each bucket, so the measured one hides the estimate until it is gone.
    left = list(enumerate(PRECEDENCE))[gone:]
    for place in (OVERLAY, SHIPPED):
        best: dict[str, dict[str, object]] = {}
        for rank, (source, where, bucket) in left:
            if where is place:
                best.setdefault(bucket, {"source": source, "bucket": bucket, "config": {"tile": rank + 1}})
        measured.tune("alpha", *best.values(), overlay=place)

    chosen = decode(measured)

    expected = (
        ({"tile": gone + 1}, state(PRECEDENCE[gone][0], PRECEDENCE[gone][2])) if left else ({"tile": 32}, "default")
    )
    assert (chosen.config, chosen.config_source) == expected


def test_a_measured_larger_bucket_goes_before_an_estimate_of_the_bucket_itself(measured):
    measured.tune("alpha", {"source": "estimated"}, {"bucket": "b64-c8192", "config": {"tile": 5}})

    assert decode(measured).config == {"tile": 5}


def test_an_entry_of_another_kernel_is_not_used_and_named(measured):
    measured.tune("alpha", {"kernel_hash": "0" * 64})

    assert decode(measured).config_source == "default"
    assert "is of another kernel (00000000, now" in notes(measured)["tuned_stale"]


def test_an_entry_too_big_for_the_card_is_rejected_with_both_numbers_and_the_next_serves(measured):
    devices = measured.folder / "devices.yaml"
    devices.write_text(devices.read_text().replace("200000", str(LIMIT)))
    measured.tune(
        "alpha",
        {"config": {"tile": 512}, "resources": {"shared_bytes": NEED}},
        {"bucket": "b64-c8192", "config": {"tile": 64}, "resources": {"shared_bytes": LIMIT}},
    )

    chosen = decode(measured)

    assert (chosen.config, chosen.config_source) == ({"tile": 64}, "bucket")
    text = notes(measured)["tuned_memory"]
    assert str(NEED) in text
    assert str(LIMIT) in text


def test_where_no_entry_fits_the_default_serves_and_the_note_comes_once(measured):
    devices = measured.folder / "devices.yaml"
    devices.write_text(devices.read_text().replace("200000", str(LIMIT)))
    measured.tune("alpha", {"resources": {"shared_bytes": NEED}})

    result = measured.ask("alpha", INT4, 96).result

    assert result.ops[Op.DECODE].config_source == "default"
    assert [note.code for note in result.notes].count("tuned_memory") == 1


def test_a_sub_model_takes_its_parents_entry_with_a_note(measured):
    measured.tune("alpha", {})

    assert decode(measured, "alpha-mini").config == {"tile": 128}
    assert "tuned on alpha, of which alpha-mini is a sub-model" in notes(measured, "alpha-mini")["tuned_parent"]


def test_a_sub_models_own_entry_goes_first(measured):
    measured.tune("alpha", {"config": {"tile": 1}})
    measured.tune("alpha-mini", {"config": {"tile": 2}})

    assert decode(measured, "alpha-mini").config == {"tile": 2}


def test_another_card_of_the_arch_takes_no_entry_over(measured):
    measured.tune("alpha", {})

    assert decode(measured, "beta").config_source == "default"


def test_a_file_that_belongs_to_another_device_is_not_used(measured):
    path = measured.tune("beta", {})
    path.rename(path.with_name("alpha.yaml"))

    assert decode(measured).config_source == "default"
    assert "belongs to beta" in notes(measured)["tuned_device"]


@pytest.mark.parametrize(
    ("stated", "rule"),
    [("Toy Alpha", "name"), ("TOY_ALPHA", "file name"), ("toy alpha", "name")],
)
def test_a_file_may_state_another_name_of_its_device_and_the_note_says_the_rule(measured, stated, rule):
    path = measured.tune("alpha", {})
    path.write_text(path.read_text().replace("device: alpha", f"device: {stated}"))

    assert decode(measured).config == {"tile": 128}
    assert notes(measured)["tuned_name"].endswith(f"in {path} is of {stated!r}, which is alpha by {rule}")


def test_a_file_of_a_device_that_nobody_knows_is_not_used(measured):
    path = measured.tune("alpha", {})
    path.write_text(path.read_text().replace("device: alpha", "device: Toy Alphabet"))

    assert decode(measured).config_source == "default"
    assert "belongs to Toy Alphabet" in notes(measured)["tuned_device"]


def test_a_mig_slice_does_not_take_the_cards_entry_silently(measured):
    devices = measured.folder / "devices.yaml"
    text = devices.read_text().replace(
        "  fp8_triton: [e4m3fn, e5m2]\n  variants", "  mig_profiles: [1g.18gb]\n  variants"
    )
    devices.write_text(text)
    measured.tune("alpha", {})

    chosen = decode(measured, "Toy Alpha MIG 1g.18gb")

    assert chosen.config_source == "default"
    assert chosen.evidence.numerics == "arch"
    found = notes(measured, "Toy Alpha MIG 1g.18gb")
    tunes = "`kvreg tune --device alpha/mig-1g.18gb --mode int4_per_token_head"
    assert "whole alpha" in found["tuned_slice"]
    assert (
        f"{tunes} --op decode --head-size 96 --group 4 --workload b32-c8192` tunes the slice" in found["tuned_slice"]
    )
    assert f"{tunes} --head-size 96` tunes it" in found["untuned"]


def test_an_entry_made_with_another_triton_is_used_with_a_note(measured, tmp_path, monkeypatch):
    (tmp_path / "site" / "triton-3.9.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    measured.tune("alpha", {}, environment={"triton": "3.6.0"})

    assert decode(measured).config_source == "tuned"
    text = notes(measured)["tuned_versions"]
    assert "tuned with triton 3.6.0, here is 3.9.0" in text
    tunes = "kvreg tune --device alpha --mode int4_per_token_head --op decode --head-size 96 --group 4"
    assert f"`{tunes} --workload b32-c8192` measures it here" in text


def test_an_entry_that_lacks_a_parameter_of_the_launcher_is_not_used(measured, capsys):
    measured.tune("alpha", {"config": {"tyle": 128}}, {"bucket": "b64-c8192", "config": {"tile": 64}})

    assert decode(measured).config == {"tile": 64}
    assert "lacks tile, which toy-int4-decode@1 is launched with" in notes(measured)["tuned_config"]
    assert capsys.readouterr().err.count("lacks tile") == 1


def test_an_entry_that_cannot_be_launched_is_not_used(measured, capsys):
    measured.tune("alpha", {"config": {"tile": 0}}, {"bucket": "b64-c8192", "config": {"tile": 64}})

    assert decode(measured).config == {"tile": 64}
    assert "has tile 0 instead of at least 1: not used" in notes(measured)["tuned_config"]
    assert capsys.readouterr().err.count("has tile 0") == 1


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"tile": 10**30}, f"tile {10**30} instead of at most {2**31 - 1}"),
        ({"tile": 64, "more": 1}, "more: toy takes no launch option"),
    ],
    ids=["over an int32", "a name that nobody knows"],
)
def test_an_entry_of_what_the_platform_does_not_take_is_not_used(measured, capsys, config, why):
    measured.tune("alpha", {"config": config}, {"bucket": "b64-c8192", "config": {"tile": 64}})

    assert decode(measured).config == {"tile": 64}
    assert f"has {why}: not used" in notes(measured)["tuned_config"]
    assert capsys.readouterr().err.count(f"has {why}") == 1


def test_a_simulated_entry_serves_nobody_and_is_named(measured):
    measured.tune("alpha", {"source": "simulated"}, overlay=True)

    assert decode(measured).config_source == "default"
    assert "simulated: serves under --simulate only" in notes(measured)["tuned_fault"]


def test_of_two_entries_of_one_key_the_first_serves_and_the_other_is_named(measured):
    measured.tune("alpha", {"config": {"tile": 1}}, {"config": {"tile": 2}})

    assert decode(measured).config == {"tile": 1}
    assert "entry 2: repeats an earlier one of toy-int4-decode@1" in notes(measured)["tuned_fault"]


@pytest.mark.parametrize("wrong", ["colour: red", "tile: 2\n  tile: 2"], ids=["unknown key", "key twice"])
def test_an_entry_of_a_wrong_key_is_named_and_the_others_serve(measured, wrong):
    path = measured.tune("alpha", {"bucket": "b64-c8192", "config": {"tile": 5}}, {"config": {"tile": 7}})
    path.write_text(path.read_text().replace("    tile: 7\n", f"    tile: 7\n  {wrong}\n"))

    assert decode(measured).config == {"tile": 5}
    assert str(path) in notes(measured)["tuned_fault"]


def test_a_broken_entry_is_named_and_the_good_ones_serve(measured):
    measured.tune("alpha", {"bucket": "huge"}, {"config": {"tile": "wide"}}, {"config": {"tile": 7}})

    assert decode(measured).config == {"tile": 7}
    faults = [each.text for each in measured.ask("alpha", INT4, 96).result.notes if each.code == "tuned_fault"]
    assert len(faults) == 2
    assert "entry 1: bucket 'huge'" in faults[0]
    assert "entry 2: config.tile" in faults[1]


@pytest.mark.parametrize(("item", "found"), [(1, "1"), ("text", "'text'"), (["a"], "['a']"), (None, "none")], ids=repr)
def test_an_entry_that_is_no_mapping_is_named_in_plain_words(measured, item, found):
    path = measured.tune("alpha", {"config": {"tile": 7}})
    document = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**document, "entries": [*document["entries"], item]}))

    assert decode(measured).config == {"tile": 7}
    assert f"{path}, entry 2: required a mapping, found {found}; left out" in notes(measured)["tuned_fault"]


@pytest.mark.parametrize("content", ["entries: [", "schema: 7\ndevice: alpha\nentries: []", "[]", "\x00"])
def test_a_broken_file_is_named_and_the_default_serves(measured, content):
    path = measured.tune("alpha", {})
    path.write_text(content)

    assert decode(measured).config_source == "default"
    assert str(path) in notes(measured)["tuned_fault"]
    assert path.exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_named_without_a_wait_and_the_default_serves(measured, make, capsys):
    path = measured.tune("alpha", {}, overlay=True)
    path.unlink()
    make(path)

    assert decode(measured).config_source == "default"
    assert f"{path}: required a readable YAML file" in notes(measured)["tuned_fault"]
    assert capsys.readouterr().err.count(str(path)) == 1


def test_a_broken_file_is_named_where_the_mode_is_refused_too(workshop, capsys):
    path = workshop.tune("alpha", {}, overlay=True)
    path.write_text("entries: [")

    (result,) = workshop.ask("alpha", INT4, 96).results

    assert result.verdict == "refused"
    assert [note.code for note in result.notes] == ["tuned_fault"]
    assert capsys.readouterr().err.count(str(path)) == 1
