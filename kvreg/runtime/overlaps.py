"""Whether an output has memory of its own: kernels read while others write, so that shared bytes would be a race.

Judged by addresses and strides, which the host sees without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvreg.core.errors import CallError, wrong

READ = ("page_table", "seq_lens", "cu_q", "causal", "sinks", "alibi", "prefix_ranges")
"""What attention reads beside `q` and the cache, as far as it is given as a tensor."""


def require_own_memory(out: torch.Tensor, q: torch.Tensor, buffer: torch.Tensor, read: Sequence[object] = ()) -> None:
    """Raise CallError when elements of `out`, (rows, heads, d), share bytes with each other or what the call reads.

    `q`: (rows, heads, d); `buffer`: the cache's bytes, taken as one piece; `read`: the arguments of READ, tensors or
    not. Rows of `out` and `q` may lie side by side in the rows of one larger tensor.
    """
    if out.numel() == 0:
        return
    if not out.is_contiguous() and _shares_with_itself(out):
        raise _wrong("rows and heads apart from each other", f"strides {out.stride()} for shape {tuple(out.shape)}")
    begin, end = _bytes(out)
    first, last = _bytes(buffer)
    if begin < last and first < end:
        raise _wrong("none of the cache's bytes", "some of them")
    first, last = _bytes(q)
    if begin < last and first < end and q.numel() and not _side_by_side(out, q):
        raise _wrong("none of q's bytes", "some of them")
    for name, other in zip(READ, read, strict=False):
        # Mostly it lies behind, or ends before: the end is asked for last, since this runs in each eager call.
        if isinstance(other, torch.Tensor) and other.data_ptr() < end and begin < _bytes(other)[1] and other.numel():
            raise _wrong(f"none of {name}'s bytes", "some of them")


def _wrong(required: str, found: str) -> CallError:
    return CallError(
        wrong(
            "out", required=f"memory of its own: {required}", found=found, remedy="pass torch.empty_like(q), or None"
        )
    )


def _bytes(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte and behind the last one."""
    if x.is_contiguous():  # nearly always, and asked in each eager call: a sum over strides takes longer than the rest
        begin = x.data_ptr()
        return begin, begin + x.nbytes
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


def _shares_with_itself(x: torch.Tensor) -> bool:
    """Whether axes lie within each other's steps; those of size 1 take none."""
    reach = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


def _side_by_side(out: torch.Tensor, q: torch.Tensor) -> bool:
    """Whether rows of the two lie in other columns of rows of the same length."""
    (begin, _), (first, _) = _bytes(out), _bytes(q)
    step = out.stride(0) * out.element_size()
    if step != q.stride(0) * q.element_size():
        return False
    (_, of_out), (_, of_q) = _bytes(out[:1]), _bytes(q[:1])
    apart = (begin - first) % step if step else 0
    return of_q - first <= apart and apart + (of_out - begin) <= step
