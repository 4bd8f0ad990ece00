"""Recorded spaces: written from the journal, replayed without a device, and what the tuner's choices cost there."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvreg.core.buckets import Bucket
from kvreg.core.errors import BadFile
from kvreg_tuning import recording
from kvreg_tuning.journal import Journal

CPU = Path(__file__).with_name("recorded") / "cpu-int4.jsonl.gz"
"""int4 on the device cpu, every trial: written by `kvreg tune --device cpu --mode int4_per_token_head --effort full
--record`, on a busy machine of two cores."""

BOUNDS = {"quick": 0.2, "normal": 0.03, "full": 0.03}
"""Worst regret over five seeds of the made-up space, one bucket: with 16 configs of 320, with 96, with all."""
CPU_BOUND = 0.10
"""Of the recorded space of the cpu, whose every config any effort tries: what the noise of a race may cost."""


def rugged(config: Mapping[str, int], bucket: str) -> dict[str, Any]:
    """A space like that of a decode kernel: two knobs that win as a pair only, a steep side, some that do not run."""
    tile, warps, stages, parts = (config[name] for name in ("tile", "num_warps", "num_stages", "programs_per_unit"))
    if tile * stages >= 512:
        return {"result": "resource", "reason": "compile: out of resource: shared memory", "us": None}
    if tile == 16 and warps == 8:
        return {"result": "wrong", "reason": "rel_error: required at most 0.005, found 1.0", "us": None}
    us = 90 + 12 * abs(math.log2(parts / 8)) + 4 * abs(stages - 3) + 15 * abs(math.log2(tile / 64 / warps * 2))
    us += 10 * abs(math.log2(warps / 2))
    return {"us": us, "spread": 0.01}


def results(answer: str) -> list[dict[str, Any]]:
    return list(json.loads(answer)["results"])


def test_regret_is_bounded_for_every_effort(recorded: Callable[..., Path], tmp_path: Path, command: Any) -> None:
    pytest.importorskip("optuna")

    done = command.run("tune", "regret", str(recorded(rugged)), "--json", home=tmp_path / "home")

    assert done.returncode == 0, done.stderr
    found = {each["effort"]: each for each in results(done.stdout)}
    assert {name: max(each["regrets"]) <= BOUNDS[name] for name, each in found.items()} == dict.fromkeys(BOUNDS, True)
    assert [len(each["regrets"]) for each in found.values()] == [5, 5, 5]
    assert (found["quick"]["trials"], found["normal"]["trials"], found["full"]["trials"]) == (17, 97, 320)


def test_regret_on_the_cpu_s_own_space_is_that_of_the_noise(tmp_path: Path, command: Any) -> None:
    done = command.run("tune", "regret", str(CPU), "--seeds", "3", "--json", home=tmp_path / "home")

    assert done.returncode == 0, done.stderr
    found = results(done.stdout)
    assert {each["bucket"] for each in found} == {"t32", "t1024", "b1-c1024", "b1-c512"}
    assert max(value for each in found for value in each["regrets"]) <= CPU_BOUND


def test_a_replay_writes_simulated_entries_that_serve_nobody_else(
    recorded: Callable[..., Path], tmp_path: Path, command: Any
) -> None:
    path, home = recorded(rugged), tmp_path / "home"

    done = command.run("tune", "--simulate", str(path), "--effort", "quick", "--json", home=home)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["source"] == "simulated"
    (result,) = document["results"]
    assert 0 <= result["regret"] <= BOUNDS["quick"]
    (file,) = document["files"]
    assert "source: simulated" in Path(file).read_text()
    # Neither a real run nor a select takes anything from there.
    refused = command.run("tune", "--device", "cpu", "--op", "write", home=home)
    assert refused.returncode == 2
    assert "SIMULATED" in refused.stderr
    asked = ("--device", "h200", "--mode", "int4_per_token_head", "--head-size", "128", "--json")
    here, elsewhere = (
        json.loads(command.run("select", *asked, home=each).stdout)["results"][0]["ops"]
        for each in (home, tmp_path / "other")
    )
    for op in here:
        assert (here[op]["config"], here[op]["config_source"]) == (
            elsewhere[op]["config"],
            elsewhere[op]["config_source"],
        )


def test_a_home_of_real_results_takes_no_simulated_ones(
    recorded: Callable[..., Path], tmp_path: Path, command: Any
) -> None:
    home = tmp_path / "home"
    (home / "tuned").mkdir(parents=True)

    done = command.run("tune", "--simulate", str(recorded(rugged)), home=home)

    assert done.returncode == 2
    assert done.stderr.startswith("kvreg: --simulate: required a KVREG_HOME of its own")
    assert not (home / "SIMULATED").exists()


def test_what_was_recorded_of_a_replay_is_the_recording(recorded: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(rugged)
    before = recording.read(path)
    (space,) = before.spaces
    with Journal(tmp_path / "journal.sqlite") as journal:
        identity = {"kernel_hash": space.kernel_hash, **before.versions}
        journal.add(space.subject, identity, before.trials.values())
        # Rows of another kernel, and of another subject's bucket, belong to no recording of this one.
        journal.add(space.subject, {**identity, "kernel_hash": "cd" * 32}, list(before.trials.values())[:3])
        count = recording.write(tmp_path / "again.jsonl.gz", before.device, before.versions, before.spaces, journal)

    assert count == 320
    assert recording.read(tmp_path / "again.jsonl.gz") == before


def test_a_config_that_was_not_tried_everywhere_is_not_in_a_recording(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    before = recording.read(recorded(rugged, buckets=("b1-c8192", "b32-c8192")))
    (space,) = before.spaces
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.add(space.subject, {"kernel_hash": space.kernel_hash}, list(before.trials.values())[:5])
        recording.write(tmp_path / "cut.jsonl.gz", before.device, {}, before.spaces, journal)

    (cut,) = recording.read(tmp_path / "cut.jsonl.gz").spaces
    assert cut.candidates.configs == space.candidates.configs[:2]


def test_the_best_of_a_recording_is_right_and_regret_is_against_it(recorded: Callable[..., Path]) -> None:
    found = recording.read(recorded(rugged))
    subject, bucket = found.spaces[0].subject, Bucket(32, 8192)
    best = found.best(subject, bucket)

    assert best is not None
    assert best.config == {"tile": 64, "num_warps": 2, "num_stages": 3, "programs_per_unit": 8}
    assert found.regret(subject, bucket, best.config) == 0.0
    assert found.regret(subject, bucket, {**best.config, "num_stages": 2}) == pytest.approx(4 / 90)
    assert found.regret(subject, bucket, {**best.config, "tile": 128, "num_stages": 4}) is None


NO_RECORDINGS = (b"", b"not gzip", *map(gzip.compress, (b"{}\n", b'{"schema": 9}\n', b"no json\n")))


@pytest.mark.parametrize("content", NO_RECORDINGS, ids=("empty", "text", "object", "schema", "lines"))
def test_what_is_no_recording_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.gz").write_bytes(content)

    with pytest.raises(BadFile, match="kvreg tune --record"):
        recording.read(tmp_path / "file.gz")


Lines = list[dict[str, Any]]


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_lines(path: Path, lines: Lines) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in lines).encode()))
    return path


def changed(**fields: Any) -> Callable[[Lines], Lines]:
    """Change the first row of a config that was tried."""

    def change(lines: Lines) -> Lines:
        place = next(number for number, line in enumerate(lines) if line.get("result") == "ok")
        return [*lines[:place], {**lines[place], **fields}, *lines[place + 1 :]]

    return change


def headed(**fields: Any) -> Callable[[Lines], Lines]:
    """Change the first space of the head."""

    def change(lines: Lines) -> Lines:
        head, *rows = lines
        first, *others = head["spaces"]
        return [{**head, "spaces": [{**first, **fields}, *others]}, *rows]

    return change


def of_subject(**fields: Any) -> Callable[[Lines], Lines]:
    """Change the subject of the first space."""
    return lambda lines: headed(subject={**lines[0]["spaces"][0]["subject"], **fields})(lines)


def pruned_default(lines: Lines) -> Lines:
    default = lines[0]["spaces"][0]["configs"][0]
    return [
        {**line, "result": "constraint"} if (line.get("space"), line.get("config")) == (0, default) else line
        for line in lines
    ]


DAMAGED: Mapping[str, tuple[Callable[[Lines], Lines], str]] = {
    "half": (lambda lines: lines[: len(lines) // 2], "no row of"),
    "head alone": (lambda lines: lines[:1], "no row of"),
    "one row": (lambda lines: lines[:2], "no row of"),
    "one row less": (lambda lines: lines[:-1], "no row of"),
    "negative space": (changed(space=-1), "space -1"),
    "true as a space": (changed(space=True), "space True"),
    "space behind the last": (changed(space=99), "space 99"),
    "doubled row": (lambda lines: [*lines, lines[-1]], "a second row of"),
    "foreign bucket": (changed(bucket="t7"), "bucket t7"),
    "unknown result": (changed(result="fine"), "result fine"),
    "no time": (changed(us=None), "ok without a time"),
    "time in words": (changed(us="fast"), "us 'fast'"),
    "time that is no number": (changed(us=math.nan), "us nan"),
    "time that no run has": (changed(us=1e308), "us 1e+308"),
    "head size in words": (of_subject(head_size="128"), "head_size '128'"),
    "head size that nothing has": (of_subject(head_size=10**40), "head_size 1000"),
    "true as a group": (of_subject(group=True), "group True"),
    "features in one word": (of_subject(features="causal"), "features 'causal'"),
    "control characters": (of_subject(variant="\x1b]0;x\x07@1"), "variant '\\x1b"),
    "hash that is a number": (headed(kernel_hash=3), "kernel_hash 3"),
    "true as the schema": (lambda lines: [{**lines[0], "schema": True}, *lines[1:]], "schema True"),
    "seconds in words": (changed(bench_s="long"), "bench_s 'long'"),
    "config in words": (changed(config="rows=16"), "config 'rows=16'"),
    "row of a list": (lambda lines: [*lines, ["a"]], "no object"),  # type: ignore[list-item]
    "no spaces": (lambda lines: [{**lines[0], "spaces": []}], "no space"),
    "doubled space": (lambda lines: [{**lines[0], "spaces": lines[0]["spaces"] * 2}, *lines[1:]], "twice"),
    "no configs": (headed(configs=[]), "no default"),
    "no buckets": (headed(buckets=[]), "no bucket"),
    "bucket in words": (headed(buckets=["all"]), "bucket 'all'"),
    "bucket of another op": (headed(buckets=["b1-c64"]), "bucket b1-c64"),
    "doubled config": (headed(configs=[{"rows": 16}, {"rows": 16}]), "twice"),
    "knob without values": (headed(knobs={"rows": []}), "without values"),
    "gate in words": (changed(gate="passed"), "gate 'passed'"),
    "pruned default": (pruned_default, "the default was not tried"),
}


@pytest.mark.parametrize(("damage", "found"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_recording_is_one_line_that_says_what_was_found(
    tmp_path: Path, damage: Callable[[Lines], Lines], found: str
) -> None:
    path = write_lines(tmp_path / "file.gz", damage(lines_of(CPU)))

    with pytest.raises(BadFile) as caught:
        recording.read(path)

    message = str(caught.value)
    assert message.startswith(f"recording {path}: required a recorded space of schema 1")
    assert found in message.partition(", found ")[2]
    assert message.endswith("`kvreg tune --record FILE` writes one")
    assert "\n" not in message


def test_a_recording_whose_compressed_bytes_are_damaged_is_one_line(tmp_path: Path) -> None:
    content = bytearray(CPU.read_bytes())
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    (tmp_path / "file.gz").write_bytes(content)

    with pytest.raises(BadFile, match="kvreg tune --record"):
        recording.read(tmp_path / "file.gz")


@pytest.mark.parametrize("arguments", [("tune", "regret"), ("tune", "--simulate")], ids=" ".join)
def test_a_cut_recording_ends_with_2_and_leaves_nothing(
    arguments: tuple[str, ...], tmp_path: Path, command: Any
) -> None:
    lines, home = lines_of(CPU), tmp_path / "home"
    path = write_lines(tmp_path / "cut.gz", lines[: len(lines) // 2])

    done = command.run(*arguments, str(path), home=home)

    assert done.returncode == 2
    assert done.stderr.startswith(f"kvreg: recording {path}: required")
    assert len(done.stderr.splitlines()) == 1
    assert not home.exists() or not any(home.iterdir())


def results_below(home: Path) -> list[str]:
    """What lies in a home but for what every command keeps there to start fast."""
    return [each.name for each in home.iterdir() if each.name != "cache"] if home.exists() else []


@pytest.mark.parametrize("arguments", [("tune", "regret"), ("tune", "--simulate")], ids=" ".join)
def test_a_recording_of_an_unknown_device_ends_with_2_and_leaves_no_results(
    arguments: tuple[str, ...], tmp_path: Path, command: Any
) -> None:
    head, *rows = lines_of(CPU)
    path, home = write_lines(tmp_path / "other.gz", [{**head, "device": "h2000"}, *rows]), tmp_path / "home"

    done = command.run(*arguments, str(path), home=home)

    assert done.returncode == 2
    assert done.stderr == (
        f"kvreg: recording {path}: required a device that kvreg knows, found 'h2000'; `kvreg devices` lists them\n"
    )
    assert results_below(home) == []


def test_a_replay_for_another_device_ends_with_2_and_the_home_stays_free_for_the_right_one(
    tmp_path: Path, command: Any
) -> None:
    home = tmp_path / "home"
    for device, says in (
        ("nosuch", "device 'nosuch': required"),
        ("h200", "--device: required cpu, whose trials cpu-int4.jsonl.gz has, found h200"),
    ):
        done = command.run("tune", "--device", device, "--simulate", str(CPU), home=home)

        assert done.returncode == 2
        assert done.stderr.startswith(f"kvreg: {says}")
        assert done.stderr.count("\n") == 1
        assert results_below(home) == []

    done = command.run("tune", "--device", "cpu", "--simulate", str(CPU), "--budget", "0.001s", home=home)

    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in results_below(home)


def test_a_space_whose_default_was_not_tried_everywhere_is_not_recorded(
    recorded: Callable[..., Path], tmp_path: Path
) -> None:
    before = recording.read(recorded(rugged, buckets=("b1-c8192", "b32-c8192")))
    (space,) = before.spaces
    other = replace(space, subject=replace(space.subject, head_size=64))
    rows = list(before.trials.values())
    with Journal(tmp_path / "journal.sqlite") as journal:
        journal.add(space.subject, {"kernel_hash": space.kernel_hash}, rows[1:])  # the run was cut off at once
        journal.add(other.subject, {"kernel_hash": space.kernel_hash}, rows[:4])
        count = recording.write(tmp_path / "cut.jsonl.gz", before.device, {}, (space, other), journal)

    found = recording.read(tmp_path / "cut.jsonl.gz")
    assert [each.subject for each in found.spaces] == [other.subject]
    assert count == len(found.trials) == 4
