"""Writing tuned files: what is merged, what survives a broken file, and what a refused write leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvreg.core import resolve
from kvreg.core.errors import NewerFile, UsageError
from kvreg.core.launchable import Launchable
from kvreg.core.requests import Request
from kvreg.core.tuned_files import read
from kvreg_tuning.judging import judge_of
from kvreg_tuning.store import merge
from kvreg_tuning.subjects import offered

HERE = {"triton": "3.6.0", "driver": "580.1"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuned" / "h200.yaml"


def head_sizes(path: Path) -> list[int]:
    return [each.head_size for each in read(path).entries]


def fate(path: Path, entry: Any, environment: dict[str, str] = HERE) -> str:
    (change,) = merge(path, "h200", environment, [entry]).changes
    return change.fate


def test_what_is_written_is_read_back_whole(path, entry):
    written = entry(gate={"cells": 7}, resources={"shared_bytes": 1024, "registers": None}, tie=True, spread=0.01)

    merge(path, "h200", HERE, [written])

    found = read(path)
    assert (found.device, found.environment, found.faults) == ("h200", HERE, ())
    assert found.entries == (written.model_copy(update={"environment": HERE}),)


def test_a_pipe_in_the_place_of_the_file_is_refused_without_a_wait(path, entry):
    path.parent.mkdir()
    os.mkfifo(path)

    with pytest.raises(UsageError, match="a file that can be read and replaced, found it is a pipe"):
        merge(path, "h200", HERE, [entry()])

    assert path.is_fifo()


def test_the_order_of_writing_leaves_no_mark(path, tmp_path, entry):
    some = [entry(), entry(head_size=128), entry(bucket="b64-c8192"), entry(bucket="b8-c512"), entry(group=8)]
    other = tmp_path / "other" / "h200.yaml"

    for one in some:
        merge(path, "h200", HERE, [one])
    merge(other, "h200", HERE, some[::-1])

    assert path.read_text() == other.read_text()
    assert [each.bucket for each in read(path).entries][:2] == ["b8-c512", "b32-c8192"]


def test_writing_the_same_again_changes_no_byte(path, entry):
    merge(path, "h200", HERE, [entry()])
    before = path.read_bytes()

    merge(path, "h200", HERE, [entry()])

    assert path.read_bytes() == before


def test_an_entry_kept_from_other_versions_states_its_own(path, entry):
    merge(path, "h200", HERE, [entry()])
    merge(path, "h200", {"triton": "3.9.0"}, [entry(head_size=128)])

    found = read(path)
    assert found.environment == {"triton": "3.9.0"}
    assert [each.environment for each in found.entries] == [HERE, {"triton": "3.9.0"}]


def test_a_write_does_not_know_a_group(path, entry):
    write = {"op": "write", "variant": "toy-int4-write@1", "bucket": "t32"}
    merge(path, "h200", HERE, [entry(**write, group=4)])

    assert fate(path, entry(**write, group=8)) == "replaced"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"head_size": 128}, "added"),
        ({}, {"kernel_hash": "b" * 64, "latency_us": 99.0}, "healed"),
        ({}, {"kernel_hash": "b" * 64, "source": "estimated"}, "healed"),
        ({}, {"source": "estimated", "latency_us": 1.0}, "kept"),
        ({"source": "estimated", "latency_us": 1.0}, {}, "replaced"),
        ({"environment": {"triton": "3.9.0"}}, {"latency_us": 99.0, "config": {"tile": 1}}, "healed"),
        ({"environment": {}}, {"latency_us": 99.0, "config": {"tile": 1}}, "healed"),
        ({}, {"latency_us": 99.0}, "replaced"),
        ({}, {"latency_us": 99.0, "config": {"tile": 1}}, "kept"),
        ({}, {"latency_us": 79.0, "config": {"tile": 1}}, "replaced"),
        ({}, {"latency_us": 90.0, "default_latency_us": 120.0, "config": {"tile": 1}}, "replaced"),
        ({"default_latency_us": None}, {"latency_us": 79.0, "config": {"tile": 1}}, "replaced"),
        ({"default_latency_us": None}, {"latency_us": 81.0, "config": {"tile": 1}}, "kept"),
        ({"latency_us": None}, {"config": {"tile": 1}}, "replaced"),
    ],
    ids=[
        "new",
        "of a new kernel",
        "even an estimate, of a new kernel",
        "an estimate over a measurement",
        "a measurement over an estimate",
        "of other versions",
        "of unknown versions",
        "the same parameters",
        "slower against the default",
        "faster against the default",
        "slower, but faster against the default of its run",
        "without a default, faster",
        "without a default, slower",
        "without a figure",
    ],
)
def test_what_becomes_of_an_entry(path, entry, old, new, expected):
    merge(path, "h200", HERE, [entry(**old)])

    assert fate(path, entry(**new)) == expected
    assert len(read(path).entries) == (2 if expected == "added" else 1)


@pytest.mark.parametrize("changed", [{"rows": 10**30}, {"tile": 8}], ids=str)
def test_an_entry_that_cannot_be_launched_gives_way_to_a_slower_one(path, entry, changed):
    on = resolve.resolve("h200").device
    backend, variant = offered("cuda")["triton-int4-decode@1"]
    request = Request(device="h200", mode=variant.mode, head_size=96, q_heads=32, kv_heads=8)
    launchable = Launchable(backend, variant, on, request)
    whole = dict(launchable.default)
    merge(path, "h200", HERE, [entry(config={**whole, **changed}, latency_us=1.0)])

    (change,) = merge(path, "h200", HERE, [entry(config=whole)], judge=judge_of(launchable)).changes

    assert change.fate == "healed"
    assert change.why.startswith(f"the other one has {next(iter(changed))}")
    assert read(path).entries[0].config == whole


def test_a_dry_run_says_the_same_and_writes_nothing(path, entry):
    assert merge(path, "h200", HERE, [entry()], dry_run=True).added
    assert not path.parent.exists()


# --- broken files ---


def broken_names(path: Path) -> list[str]:
    return [each.name for each in path.parent.iterdir() if ".broken-" in each.name]


def cut_off(text: str) -> str:
    return text[: text.rindex("kernel_hash")]


def with_a_conflict(text: str) -> str:
    lines = text.splitlines(keepends=True)
    middle = next(n for n, line in enumerate(lines) if "head_size: 112" in line)
    return "".join([*lines[:middle], "<<<<<<< ours\n", *lines[middle:]])


def with_an_unknown_key(text: str) -> str:
    return text.replace("  head_size: 112\n", "  head_size: 112\n  colour: red\n")


def with_a_key_twice(text: str) -> str:
    return text.replace("  head_size: 112\n", "  head_size: 112\n  head_size: 112\n")


def with_no_utf8(text: str) -> str:
    return text.replace("  head_size: 112\n", "  head_size: 112\n  dtype: \udcff\n")


def without_its_environment(text: str) -> str:
    return text.replace("environment: {", "environment: {{").replace("head_size: 112", "head_size: -112")


@pytest.mark.parametrize(
    "damage",
    [cut_off, with_a_conflict, with_an_unknown_key, with_a_key_twice, with_no_utf8, without_its_environment],
)
def test_a_broken_file_is_set_aside_and_its_good_entries_survive(path, entry, capsys, damage):
    merge(path, "h200", HERE, [entry(head_size=size) for size in (64, 96, 112)])
    broken = damage(path.read_text()).encode(errors="surrogateescape")
    path.write_bytes(broken)

    report = merge(path, "h200", HERE, [entry(head_size=128)])

    assert head_sizes(path) == [64, 96, 128]
    assert report.set_aside.read_bytes() == broken
    assert broken_names(path) == [report.set_aside.name]
    warning = capsys.readouterr().err
    assert str(path) in warning
    assert report.set_aside.name in warning


@pytest.mark.parametrize("content", [b"", b"\x00" * 4096, b"entries: [", b"[]", b"schema: 1\ndevice: h200\n"])
def test_a_file_without_a_good_entry_is_set_aside_too(path, entry, content):
    path.parent.mkdir()
    path.write_bytes(content)

    report = merge(path, "h200", HERE, [entry()])

    assert head_sizes(path) == [96]
    assert report.set_aside.read_bytes() == content


def test_a_second_broken_file_of_the_same_second_does_not_replace_the_first(path, entry):
    path.parent.mkdir()
    for content in ("first: [", "second: ["):
        path.write_text(content)
        merge(path, "h200", HERE, [entry()])

    assert sorted(each.read_text() for each in path.parent.glob("*.broken-*")) == ["first: [", "second: ["]


def test_a_file_of_another_device_is_set_aside_and_lends_no_entry(path, entry):
    merge(path, "b200", HERE, [entry(head_size=64)])

    report = merge(path, "h200", HERE, [entry()])

    assert "belongs to b200" in report.faults[0]
    assert head_sizes(path) == [96]


def test_a_file_that_states_another_name_of_the_device_lends_its_entries(path, entry):
    merge(path, "h200", HERE, [entry(head_size=64)])
    path.write_text(path.read_text().replace("device: h200", "device: NVIDIA H200"))

    assert merge(path, "h200", HERE, [entry()]).set_aside is None
    assert (read(path).device, head_sizes(path)) == ("h200", [64, 96])


def test_a_file_of_a_newer_kvreg_is_left_alone(path, entry):
    path.parent.mkdir()
    path.write_text("schema: 2\ndevice: h200\nentries: []\n")

    with pytest.raises(NewerFile, match=r"required schema 1, found schema 2; read it with the kvreg that wrote it"):
        merge(path, "h200", HERE, [entry()])
    assert [each.name for each in path.parent.iterdir() if not each.name.startswith(".")] == ["h200.yaml"]


# --- what may not be written ---


def test_a_simulated_entry_is_refused_but_under_simulate(path, entry):
    with pytest.raises(UsageError, match="found simulated ones"):
        merge(path, "h200", HERE, [entry(source="simulated")])
    assert not path.exists()

    merge(path, "h200", HERE, [entry(source="simulated")], simulated=True)

    assert read(path).entries == ()
    assert "simulated: serves under --simulate only" in read(path).faults[0]
    assert len(read(path, simulated=True).entries) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_size": 0},
        {"head_size": True},
        {"bucket": "t32"},
        {"bucket": "b33-c8192"},
        {"bucket": "b32-c128"},
        {"op": "prefill", "bucket": "b4-c16384"},
        {"op": "write", "bucket": "b32-c8192"},
        {"features": ["causality"]},
        {"dtype": "bf17"},
        {"config": {"tile": 64.5}},
        {"config": {"tile": True}},
        {"latency_us": float("nan")},
        {"kernel_hash": "abc"},
        {"date": "yesterday"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_no_entry_is_made_that_a_reader_would_refuse(entry, wrong):
    with pytest.raises(ValidationError):
        entry(**wrong)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("name", ["folder", "x" * 300], ids=["a folder", "a name too long"])
def test_what_is_no_file_is_a_line_that_names_it(tmp_path, entry, name, dry_run):
    (tmp_path / "folder").mkdir()

    with pytest.raises(UsageError, match=f"{name}: required a file that can be read and replaced, found "):
        merge(tmp_path / name, "h200", HERE, [entry()], dry_run=dry_run)
    assert [each.name for each in tmp_path.iterdir() if each.suffix not in (".lock",)] == ["folder"]


def test_a_link_is_written_through(path, tmp_path, entry):
    real = tmp_path / "real" / "h200.yaml"
    merge(real, "h200", HERE, [entry()])
    path.parent.mkdir()
    path.symlink_to(real)

    merge(path, "h200", HERE, [entry(head_size=128)])

    assert path.is_symlink()
    assert head_sizes(real) == [96, 128]


def test_what_a_killed_writer_left_is_swept(path, entry):
    path.parent.mkdir()
    left = path.with_name(".h200.yaml.123.456.tmp")
    left.write_text("half of a f")

    merge(path, "h200", HERE, [entry()])

    assert not left.exists()
