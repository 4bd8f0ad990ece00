"""Tuned files under several processes: writers that meet, a reader among them, and writers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvreg.core.errors import UsageError
from kvreg.core.tuned_files import read
from kvreg_tuning.locks import locked
from kvreg_tuning.store import merge

HERE = {"triton": "3.6.0"}
ROUNDS = 20

WRITER = """
import sys
from pathlib import Path
from kvreg.core.tuned_files import EntryRecord
from kvreg_tuning.store import merge

path, plain = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for line in sys.stdin:
    record = EntryRecord.model_validate_json(plain).model_copy(update={"latency_us": float(line)})
    merge(path, "h200", {"triton": "3.6.0"}, [record])
    print("written", flush=True)
"""

READER = """
import sys
from pathlib import Path
from kvreg.core.tuned_files import read

path, stop = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
reads = faults = empty = 0
while not stop.exists():
    if path.exists():
        found = read(path)
        reads, faults, empty = reads + 1, faults + len(found.faults), empty + (not found.entries)
print(reads, faults, empty)
"""


@pytest.fixture
def start():
    """Start a Python program; whatever is left of it ends with the test."""
    started = []

    def run(program: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    return line or process.communicate()[1]


def test_two_writers_lose_nothing_of_each_other_and_a_reader_sees_whole_files_only(tmp_path, start, entry):
    path, stop = tmp_path / "h200.yaml", tmp_path / "stop"
    sizes = (96, 128)
    writers = [start(WRITER, str(path), entry(head_size=size).model_dump_json()) for size in sizes]
    reader = start(READER, str(path), str(stop))
    assert [answer(each) for each in (*writers, reader)] == ["ready"] * 3

    for latency in range(ROUNDS, 0, -1):
        for writer in writers:
            writer.stdin.write(f"{latency}\n")
            writer.stdin.flush()
        assert [answer(each) for each in writers] == ["written"] * 2
        assert [(each.head_size, each.latency_us) for each in read(path).entries] == [(96, latency), (128, latency)]

    stop.touch()
    reads, faults, empty = map(int, answer(reader).split())
    assert reads > ROUNDS
    assert (faults, empty) == (0, 0)


KILLED = """
import json, os, signal, sys
from pathlib import Path
from kvreg.core.tuned_files import EntryRecord, read
from kvreg_tuning.store import merge

path, plain = Path(sys.argv[1]), EntryRecord.model_validate_json(sys.argv[2])
entries = [plain.model_copy(update={"head_size": size}) for size in range(32, 128, 8)]


def write(latency, dies_at=None):
    # Calls into C are the moments: every system call of the write lies between two of them.
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event.startswith("c_")
        if calls == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    merge(path, "h200", {}, [each.model_copy(update={"latency_us": latency}) for each in entries])
    sys.setprofile(None)
    return calls


write(1.0)
last = write(2.0)
moments = [*range(1, last, last // 20), *range(last - 60, last), last + 1000]
seen = {"moments": len(moments), "old": 0, "new": 0, "wrong": 0}
for number, moment in enumerate(moments, start=3):
    before = path.read_bytes()
    child = os.fork()
    if not child:
        write(float(number), moment)
        os._exit(0)
    os.waitpid(child, 0)
    found = read(path)
    if path.read_bytes() == before:
        seen["old"] += 1
    elif {each.latency_us for each in found.entries} == {number} and len(found.entries) == len(entries):
        seen["new"] += 1
    else:
        seen["wrong"] += 1
merge(path, "h200", {}, entries[:1], patience_s=1)  # the dead hold no lock
seen["left"] = len([*path.parent.glob(".*.tmp")])
print(json.dumps(seen))
"""


def test_a_writer_killed_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path, start, entry):
    process = start(KILLED, str(tmp_path / "h200.yaml"), entry().model_dump_json())

    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    seen = json.loads(out)
    assert (seen["wrong"], seen["left"]) == (0, 0)
    assert seen["old"] > 40
    assert seen["new"] > 0
    assert seen["old"] + seen["new"] == seen["moments"]


HOLDER = """
import sys, time
from pathlib import Path
from kvreg_tuning.locks import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_that_is_not_free_in_time_names_its_holder(tmp_path, start, entry):
    path = tmp_path / "h200.yaml"
    holder = start(HOLDER, str(path))
    assert answer(holder) == "held"

    with pytest.raises(UsageError, match=rf"required its lock within 0\.2 s, found process {holder.pid} on "):
        merge(path, "h200", HERE, [entry()], patience_s=0.2)
    assert not path.exists()

    holder.kill()
    holder.wait()
    assert merge(path, "h200", HERE, [entry()], patience_s=5).added


def test_a_lock_is_free_again_after_an_error(tmp_path):
    path = Path(tmp_path / "h200.yaml")
    with pytest.raises(ZeroDivisionError), locked(path):
        raise ZeroDivisionError

    with locked(path, patience_s=0):
        pass
