"""The shapes that every quoted time uses, as work for the tuner: `--workload bench`. Torch-free.

A shape is tuned in the bucket that holds it, 32 x 1088 in b32-c2048: there the tuner times the bucket's largest work,
and `kvreg bench` the shape itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvreg.bench.shapes import DECODE, WRITE
from kvreg.core.buckets import Bucket, bucket
from kvreg.core.errors import UsageError, wrong
from kvreg.core.requests import Op
from kvreg_tuning.workloads import Shape, Workload

NAME = "bench"
"""What the workload is called on a command line."""


def shapes_to_tune(head_sizes: Sequence[int] = ()) -> tuple[Shape, ...]:
    """Return the decodes, then the writes, of the table of shapes; `head_sizes`: only these, none for all.

    Shapes of the same heads are one, with a bucket each. Raises UsageError where none has a head size of these.
    """
    found: dict[tuple[Op, int, int, int], list[Bucket]] = {}
    for each in (*DECODE, *WRITE):
        if head_sizes and each.head_size not in head_sizes:
            continue
        # A write serves every group: its query heads are those of a group of one.
        work = found.setdefault((each.op, each.head_size, each.q_heads, each.kv_heads), [])
        context = 0 if each.op is Op.WRITE else max(each.contexts)
        work.append(bucket(each.op, each.tokens if each.op is Op.WRITE else len(each.contexts), context))
    if not found:
        sizes = ", ".join(map(str, sorted({each.head_size for each in (*DECODE, *WRITE)})))
        raise UsageError(
            wrong(
                "--head-size",
                required=f"one of {sizes} with workload {NAME}",
                found=", ".join(map(str, head_sizes)),
                remedy="take one of them, or name another workload",
            )
        )
    return tuple(
        Shape((), head_size, q_heads, kv_heads, "bf16", ("causal",), Workload(NAME, {op: tuple(dict.fromkeys(work))}))
        for (op, head_size, q_heads, kv_heads), work in found.items()
    )
