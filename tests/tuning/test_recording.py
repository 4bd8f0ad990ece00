"""Recorded spaces: written from the journal, replayed without a device, and what the tuner's choices cost there."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping
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
    selected = command.run("select", *asked, home=home)
    assert json.loads(selected.stdout)["results"][0]["ops"]["decode"]["config_source"] == "default"


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
