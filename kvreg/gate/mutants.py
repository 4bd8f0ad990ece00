"""Which check of the gate kills which fault: run with `python -m kvreg.gate.mutants [--output FILE]`.

Every fault of `kvreg.gate.faults` is planted in an otherwise right implementation and judged on the same batches.
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
from kvreg.gate.faults import FEATURE, READER, WRITER, features_of, fp8_of, modes_of
from kvreg.gate.reports import ATTENTION_CHECKS, WRITE_CHECKS, Failure, GateReport, WriteReport
from kvreg.gate.run import reference_of, run_attention, run_write
from kvreg.gate.specimen import Specimen
from kvreg.oracle import Reference
from kvreg.testing import INPUTS, KINDS, WINDOWS, Batch, CacheBytes, Kind, build

HEAD_SIZE = 96
"""A head size whose rotation block (32) is not the head size, or two faults could not be told from a right kernel."""
CONTEXTS = (1, 17, 64, 300)
_SHORT = {
    Mode.NONE: "none",
    Mode.FP8_PER_TENSOR: "fp8t",
    Mode.INT8_PER_TOKEN_HEAD: "int8",
    Mode.FP8_PER_TOKEN_HEAD: "fp8h",
    Mode.INT4_PER_TOKEN_HEAD: "int4",
}
_CAUSAL = features_of(None)


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
def _batch(kind: Kind, words: tuple[str, ...] = _CAUSAL) -> Batch:
    layout = PLANAR if kind == "decode" else INLINE
    return build(
        kind,
        head_size=HEAD_SIZE,
        group=4,
        kv_heads=2,
        contexts=CONTEXTS,
        inputs=INPUTS,
        layout=layout,
        features=words,
    )


def _written(kind: Kind, mode: Mode, fault: str | None, fp8: str) -> CacheBytes:
    batch = _batch(kind)
    made = batch.cache(mode, fp8=fp8)
    Specimen(fault).write(made, batch.k, batch.v, batch.slots)
    return made


@cache
def _right(kind: Kind, mode: Mode, fp8: str) -> CacheBytes:
    return _written(kind, mode, None, fp8)


@cache
def _reference(kind: Kind, mode: Mode, fp8: str, words: tuple[str, ...]) -> Reference:
    return reference_of(_batch(kind, words), _right(kind, mode, fp8))


def judge_read(fault: str | None, kind: Kind, mode: Mode, words: tuple[str, ...] | None = None) -> GateReport:
    """Judge a reader with `fault` on a cache that is right; `words`: the request's features, else the fault's."""
    words, fp8 = words or features_of(fault), fp8_of(fault)
    # Features draw more query rows for drafts, but the rows that are stored are the same.
    batch, made = _batch(kind, words), _right(kind, mode, fp8)
    reference = _reference(kind, mode, fp8, words)
    return run_attention(_attend(Specimen(fault), batch, made), batch, made, reference=reference)


def judge_read_of(fault: str | None, kind: Kind, mode: Mode) -> GateReport:
    """Judge a right reader on the cache that a writer with `fault` has left."""
    batch, made = _batch(kind), _written(kind, mode, fault, fp8_of(fault))
    return run_attention(_attend(Specimen(), batch, made), batch, made)


def judge_write(fault: str | None, mode: Mode) -> WriteReport:
    """Judge a writer with `fault`."""
    batch, specimen = _batch("mixed"), Specimen(fault)
    made = batch.cache(mode, fp8=fp8_of(fault))
    return run_write(lambda: specimen.write(made, batch.k, batch.v, batch.slots), batch, made)


def _attend(specimen: Specimen, batch: Batch, made: CacheBytes) -> Callable[[torch.Tensor, torch.Tensor | None], None]:
    def call(out: torch.Tensor, lse: torch.Tensor | None) -> None:
        asked = (batch.q, made, batch.page_table, batch.seq_lens, batch.cu_q, batch.scale)
        specimen.attend(*asked, out, lse, batch.features)

    return call


def _count(failures: tuple[Failure, ...]) -> Counter[str]:
    return Counter(check for check, _ in {(failure.check, failure.where) for failure in failures})


@cache
def verdict(fault: str | None) -> Verdict:
    """Judge one fault on every batch and in the modes in which it is planted; None: the right implementation.

    That one is judged in all modes, and with every set of features that a fault takes.
    """
    attention: Counter[str] = Counter()
    write: Counter[str] = Counter()
    sequences = written = 0
    for mode in Mode if fault is None else modes_of(fault):
        if fault is None or fault in WRITER:
            report = judge_write(fault, mode)
            write += _count(report.failures)
            written += len(report.rows)
        for kind in KINDS:
            seen = judge_read_of(fault, kind, mode) if fault in WRITER else judge_read(fault, kind, mode)
            attention += _count(seen.failures)
            sequences += len(seen.rows)
    if fault is None:
        for words in sorted({features_of(planted) for planted in FEATURE}):
            for kind in KINDS:
                seen = judge_read(None, kind, Mode.NONE, words)
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


def _modes(fault: str) -> str:
    return ", ".join(_SHORT[mode] for mode in modes_of(fault))


READING = ("poison", "finite", "zero", "rel_error", "cosine", "lse")
"""Attention checks that a fault of a read or of a feature can show in, which are the columns of their tables."""


def row(fault: str) -> list[str]:
    """Return the cells of a fault's line in its table."""
    found = verdict(fault)
    if fault in WRITER:
        return [WRITER[fault], _modes(fault), *_write_cells(found)]
    if fault in READER:
        return [READER[fault], _modes(fault), *_read_cells(found)]
    return [FEATURE[fault][1], "+".join(features_of(fault)), *_read_cells(found)]


def _read_cells(v: Verdict) -> list[str]:
    return [_cell(check, v.attention, v.sequences) for check in READING]


def _write_cells(v: Verdict) -> list[str]:
    seen = [_cell(check, v.attention, v.sequences) for check in ("rel_error", "finite")]
    return [*(_cell(check, v.write, v.written) for check in WRITE_CHECKS), *seen]


def document() -> str:
    """Return docs/gate-mutants.md."""
    right = verdict(None)
    writers, readers, features = ([verdict(fault) for fault in table] for table in (WRITER, READER, FEATURE))
    every = [*writers, *readers, *features]
    alive = [v.fault for v in every if not v.killed]
    reading = [check for check in ATTENTION_CHECKS if any(v.attention[check] for v in (*readers, *features))]
    if tuple(reading) != READING:
        raise ValueError(f"READING: required {reading}, found {READING}; a fault shows in another check now")
    unused = [check for check in ATTENTION_CHECKS if check not in READING]

    passed = [check for check in READING if not verdict("output_zeros").attention[check]]
    lines = [
        "# What the gate kills",
        "",
        "Generated by `python -m kvreg.gate.mutants --output docs/gate-mutants.md`; do not edit. Each row is one",
        "fault (`kvreg/gate/faults.py`) planted in a right implementation (`kvreg/gate/specimen.py`), judged on one",
        f"decode, one prefill and one mixed batch: head size {HEAD_SIZE}, 2 KV heads of 4 query heads,",
        f"contexts {', '.join(map(str, CONTEXTS))},",
        f"inputs {', '.join(INPUTS)}, bf16, layouts planar.1 and inline.1. **n**/m: red in n of m",
        "sequences (empty ones included); an empty cell: the check does not see the fault. A split, a window or a",
        "causal edge that a short context or a single query row does not have cannot be wrong there. Modes are",
        "int8_per_token_head, fp8_per_token_head (fp8h), fp8_per_tensor (fp8t), int4_per_token_head and none.",
        "",
        f"{len(every) - len(alive)} of {len(every)} faults are killed; the right implementation is "
        f"{'red' if right.killed else 'green in every check'}, in every mode and with the features of every fault.",
        *([f"**Alive: {', '.join(map(str, alive))}.**"] if alive else []),
        "",
        "## Faults of a read",
        "",
        "The cache is right; the attention check judges.",
        "",
        *_table(
            ["fault", "modes", *READING],
            [
                ["none", "all", *_read_cells(right)],
                *(row(fault) for fault in READER),
            ],
        ),
        "",
        f"An output of zeros passes the checks {', '.join(passed)}: none of them judges the values.",
        f"The checks {', '.join(unused)} are not needed for any of these faults; their own tests plant what",
        "they are for.",
        "",
        "## Faults of a feature",
        "",
        "Judged over unquantized rows: what a query sees does not depend on how rows are stored.",
        f"Windows are of {WINDOWS[0]} keys.",
        "",
        *_table(
            ["fault", "features", *READING],
            [row(fault) for fault in FEATURE],
        ),
        "",
        "## Faults of a write",
        "",
        "The write check judges each row against what its format makes of the input (in int4, of its fp64 rotation).",
        "The last two columns show what the attention check sees with a right reader: it compares with the cache",
        "*as it was written*, so a row that is stored wrongly but can be read is the write check's to find, and only",
        "a row that was never written, or is nan, shows.",
        "",
        *_table(
            ["fault", "modes", *WRITE_CHECKS, "attention: rel_error", "attention: finite"],
            [
                ["none", "all", *_write_cells(right)],
                *(row(fault) for fault in WRITER),
            ],
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
