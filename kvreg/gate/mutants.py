"""Which check of the gate kills which fault: run with `python -m kvreg.gate.mutants [--output FILE]`.

Every fault of `kvreg.gate.specimen` is planted in an otherwise right implementation and judged on the same batches.
A fault of a write is judged twice: by the write check, and by the attention check with a right reader, which shows
what attention against the dequantized cache cannot see.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kvreg.core.layouts import INLINE, PLANAR
from kvreg.core.modes import Mode
from kvreg.gate import limits
from kvreg.gate.reports import ATTENTION_CHECKS, WRITE_CHECKS, Failure, GateReport, WriteReport
from kvreg.gate.run import reference_of, run_attention, run_write
from kvreg.gate.specimen import READER, WRITER, Specimen, modes_of
from kvreg.oracle import Reference
from kvreg.testing import INPUTS, KINDS, Batch, CacheBytes, Kind, build

HEAD_SIZE = 96
"""A head size whose rotation block (32) is not the head size, or two faults could not be told from a right kernel."""
CONTEXTS = (1, 17, 64, 300)
_MODES = (Mode.NONE, Mode.INT4_PER_TOKEN_HEAD)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate said of one fault, over all batches."""

    fault: str | None
    sequences: int
    """Sequences judged by the attention check; a write is judged on as many as one batch of each mode has."""
    written: int
    attention: Counter[str]
    """Sequences (or places, for checks of a whole call) at which each attention check failed."""
    write: Counter[str]

    @property
    def killed(self) -> bool:
        """Whether any check is red."""
        return bool(self.attention or self.write)


@cache
def _batch(kind: Kind) -> Batch:
    layout = PLANAR if kind == "decode" else INLINE
    return build(kind, head_size=HEAD_SIZE, group=4, kv_heads=2, contexts=CONTEXTS, inputs=INPUTS, layout=layout)


def _written(kind: Kind, mode: Mode, specimen: Specimen) -> CacheBytes:
    batch, made = _batch(kind), _batch(kind).cache(mode)
    specimen.write(made, batch.k, batch.v, batch.slots)
    return made


@cache
def _right(kind: Kind, mode: Mode) -> tuple[CacheBytes, Reference]:
    made = _written(kind, mode, Specimen())
    return made, reference_of(_batch(kind), made)


def judge_read(fault: str | None, kind: Kind, mode: Mode) -> GateReport:
    """Judge a reader with `fault` on a cache that is right."""
    batch, (made, reference) = _batch(kind), _right(kind, mode)
    return run_attention(_attend(Specimen(fault), batch, made), batch, made, reference=reference)


def judge_read_of(fault: str | None, kind: Kind, mode: Mode) -> GateReport:
    """Judge a right reader on the cache that a writer with `fault` has left."""
    batch, made = _batch(kind), _written(kind, mode, Specimen(fault))
    return run_attention(_attend(Specimen(), batch, made), batch, made)


def judge_write(fault: str | None, mode: Mode) -> WriteReport:
    """Judge a writer with `fault`."""
    batch, specimen = _batch("mixed"), Specimen(fault)
    made = batch.cache(mode)
    return run_write(lambda: specimen.write(made, batch.k, batch.v, batch.slots), batch, made)


def _attend(specimen: Specimen, batch: Batch, made: CacheBytes) -> Callable[[torch.Tensor, torch.Tensor | None], None]:
    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        specimen.attend(batch.q, made, batch.page_table, batch.seq_lens, batch.cu_q, batch.scale, out, lse)

    return call


def _count(failures: tuple[Failure, ...]) -> Counter[str]:
    return Counter(check for check, _ in {(failure.check, failure.where) for failure in failures})


@cache
def verdict(fault: str | None) -> Verdict:
    """Judge one fault (None: the right implementation) on every batch and in every mode in which it can exist."""
    attention: Counter[str] = Counter()
    write: Counter[str] = Counter()
    sequences = written = 0
    for mode in _MODES if fault is None else modes_of(fault):
        if fault not in READER:
            report = judge_write(fault, mode)
            write += _count(report.failures)
            written += len(report.rows)
        for kind in KINDS:
            seen = judge_read_of(fault, kind, mode) if fault in WRITER else judge_read(fault, kind, mode)
            attention += _count(seen.failures)
            sequences += len(seen.rows)
    return Verdict(fault, sequences, written, attention, write)


_WHOLE = frozenset({"shape", "dtype", "guard", "repeat", "untouched"})
"""Checks of a call as a whole; they have no count of sequences."""


def _cell(check: str, counts: Counter[str], total: int) -> str:
    if not counts[check]:
        return ""
    return "**red**" if check in _WHOLE else f"**{min(counts[check], total)}**/{total}"


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def document() -> str:
    """Return docs/gate-mutants.md."""
    right = verdict(None)
    writers, readers = [verdict(fault) for fault in WRITER], [verdict(fault) for fault in READER]
    alive = [v.fault for v in (*writers, *readers) if not v.killed]
    reading = [check for check in ATTENTION_CHECKS if any(v.attention[check] for v in readers)]
    unused = [check for check in ATTENTION_CHECKS if check not in reading]

    def reader_row(name: str, v: Verdict) -> list[str]:
        return [name, *(_cell(check, v.attention, v.sequences) for check in reading)]

    def writer_row(name: str, v: Verdict) -> list[str]:
        seen = [_cell(check, v.attention, v.sequences) for check in ("rel_error", "finite")]
        return [name, *(_cell(check, v.write, v.written) for check in WRITE_CHECKS), *seen]

    passed = [check for check in reading if not readers[list(READER).index("output_zeros")].attention[check]]
    lines = [
        "# What the gate kills",
        "",
        "Generated by `python -m kvreg.gate.mutants --output docs/gate-mutants.md`; do not edit. Each row is one",
        "fault planted in a right implementation (`kvreg/gate/specimen.py`), judged on one decode, one prefill and",
        f"one mixed batch: head size {HEAD_SIZE}, 2 KV heads of 4 query heads,",
        f"contexts {', '.join(map(str, CONTEXTS))},",
        f"inputs {', '.join(INPUTS)}, bf16, layouts planar.1 and inline.1, in every mode in",
        "which the fault can exist. **n**/m: red in n of m sequences (empty ones included); an empty cell: the check",
        "does not see the fault. A split or a causal edge that a short context or a single query row does not have",
        "cannot be wrong there.",
        "",
        f"{len(WRITER) + len(READER) - len(alive)} of {len(WRITER) + len(READER)} faults are killed; the right "
        f"implementation is {'red' if right.killed else 'green in every check'}.",
        *([f"**Alive: {', '.join(map(str, alive))}.**"] if alive else []),
        "",
        "## Faults of a read",
        "",
        "The cache is right; the attention check judges.",
        "",
        *_table(
            ["fault", *reading], [reader_row("none", right), *(reader_row(READER[v.fault or ""], v) for v in readers)]
        ),
        "",
        f"An output of zeros passes the checks {', '.join(passed)}: none of them judges the values.",
        f"The checks {', '.join(unused)} are not needed for any of these faults; their own tests plant what",
        "they are for.",
        "",
        "## Faults of a write",
        "",
        "The write check judges each row against the fp64 rotation of its input. The last two columns show what the",
        "attention check sees with a right reader: it compares with the cache *as it was written*, so a row that is",
        "stored wrongly but can be read is the write check's to find, and only a row that was never written shows.",
        "",
        *_table(
            ["fault", *WRITE_CHECKS, "attention: rel_error", "attention: finite"],
            [writer_row("none", right), *(writer_row(WRITER[v.fault or ""], v) for v in writers)],
        ),
        "",
        "## Limits",
        "",
        *_table(
            ["limit", "value", "of", "source"],
            [
                [name, f"{x.value:g}", x.unit.replace("|", "\\|"), x.source.replace("|", "\\|")]
                for name, x in limits.ALL.items()
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or put it in a file; returns 5 when a fault is alive or the right implementation is red."""
    parser = argparse.ArgumentParser(prog="python -m kvreg.gate.mutants", description=__doc__)
    parser.add_argument("--output", type=Path, help="file to replace; the table is printed without it")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    text = document()
    if options.output is None:
        sys.stdout.write(text)
    else:
        with tempfile.NamedTemporaryFile("w", dir=options.output.parent, delete=False, encoding="utf-8") as made:
            made.write(text)
            made.flush()
            os.fsync(made.fileno())
        Path(made.name).chmod(0o644)
        Path(made.name).replace(options.output)
    return 5 if "**Alive:" in text or "implementation is red" in text else 0


if __name__ == "__main__":
    sys.exit(main())
