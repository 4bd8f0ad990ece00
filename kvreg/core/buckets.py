"""One bucket function for the tuner that writes an entry and the run time that looks one up: always the ceiling.

A bucket is a power of two in each of its axes, so that two workloads of one bucket differ by less than a factor of
two. A larger bucket may stand in for one that was never tuned (its launch parameters suit at least as much work);
a smaller one never does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kvreg.core.errors import UsageError
from kvreg.core.requests import Op

LEAST_CONTEXT = 256
"""Contexts up to this many tokens share a bucket: one or two tiles, where no launch parameter differs."""

PREFILL_CONTEXT = 8192
"""Prefill of a longer context is bound by arithmetic, and its best parameters no longer change."""

MOST_AT_ONCE = 65536
"""Sequences of a timed batch, and heads: a GPU's grid has no more blocks in two of its directions."""
LARGEST = 2**31 - 1
"""Kernels take sequences and lengths as int32."""

_TEXT = re.compile(r"b(?P<batch>[1-9][0-9]*)-c(?P<context>[1-9][0-9]*)|t(?P<tokens>[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A class of workloads: `b32-c8192` (sequences, tokens each) or, for writes, `t32` (tokens)."""

    batch: int
    """Sequences; for a write the tokens of one call."""
    context: int
    """Tokens of a sequence; 0 for a write."""

    @classmethod
    def parse(cls, text: str) -> Bucket:
        """Read `b32-c8192` or `t32`; raises UsageError for another form."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"bucket {text!r}: required bBATCH-cCONTEXT or tTOKENS, such as b32-c8192 or t32")
        found = cls(int(match["tokens"]), 0) if match["tokens"] else cls(int(match["batch"]), int(match["context"]))
        if max(found.batch, found.context) > LARGEST:
            raise UsageError(f"bucket {text!r}: required numbers of at most {LARGEST}, which int32 holds")
        return found

    def __str__(self) -> str:
        return f"b{self.batch}-c{self.context}" if self.context else f"t{self.batch}"

    def is_of(self, op: Op) -> bool:
        """Whether the op's work is counted so: a write's in tokens, attention's in sequences and their tokens."""
        return (self.context == 0) is (op is Op.WRITE)

    @property
    def size(self) -> int:
        """Tokens of work; orders the buckets that could stand in for a missing one."""
        return self.batch * max(self.context, 1)

    def covers(self, other: Bucket) -> bool:
        """Whether this bucket is at least as large in every axis; a write's never covers an attention's."""
        same_kind = (self.context == 0) == (other.context == 0)
        return same_kind and self.batch >= other.batch and self.context >= other.context


def is_bucket(text: str) -> bool:
    """Whether `Bucket.parse` reads a text."""
    return _TEXT.fullmatch(text) is not None


def bucket(op: Op, batch: int, context: int, tokens: int | None = None) -> Bucket:
    """Return the bucket of a workload of `batch` sequences of `context` tokens.

    A write is counted in `tokens` of one call; None takes those of a decode step, one a sequence.
    """
    if op is Op.WRITE:
        return Bucket(_ceiling(batch if tokens is None else tokens), 0)
    if op is Op.PREFILL:
        context = min(context, PREFILL_CONTEXT)
    return Bucket(_ceiling(batch), max(_ceiling(context), LEAST_CONTEXT))


def stand_in(wanted: Bucket, known: Iterable[Bucket]) -> Bucket | None:
    """Return the wanted bucket where it is known, else the smallest larger one; None where there is none."""
    larger = [each for each in known if each.covers(wanted)]
    return min(larger, key=lambda each: (each.size, each.batch), default=None)


def _ceiling(value: int) -> int:
    return 1 << (max(value, 1) - 1).bit_length()
