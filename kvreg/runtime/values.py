"""Rules for the values of slots, page numbers and lengths, checked where the host can see them.

On a card these values lie in device memory and looking at them would make the host wait, so they are the caller's duty
there; on the cpu, the interpreter's tensors included, each call checks them before it stores or reads anything.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from kvreg.core.errors import CallError, wrong
from kvreg.runtime.launchers import Features


def check_slots(slots: torch.Tensor, limit: int, *, distinct: bool = True) -> None:
    """Raise CallError for a slot of the cache that does not exist or, if `distinct`, is named twice."""
    used = slots[slots >= 0]
    if not used.numel():
        return
    highest = int(used.max())
    if highest >= limit:
        raise CallError(
            wrong(
                "slots", required=f"slots below {limit}", found=highest, remedy="pass -1 for rows that are not stored"
            )
        )
    if not distinct:
        return
    ordered = used.sort().values
    twice = (ordered[1:] == ordered[:-1]).nonzero()
    if twice.numel():
        raise CallError(
            wrong(
                "slots",
                required="each slot once",
                found=f"slot {int(ordered[int(twice[0])])} twice",
                remedy="pass -1 for all but one of the rows",
            )
        )


def check_batch(
    page_table: torch.Tensor, seq_lens: torch.Tensor, cu_q: torch.Tensor, tokens: int, pages: int, page: int, most: int
) -> None:
    """Raise CallError for lengths, query offsets or page numbers that lead outside.

    `tokens` query rows, `pages` of `page` slots in the cache, at most `most` tokens a sequence by the plan. Entries of
    the page table that no query leads to are not looked at.
    """
    lengths, offsets = seq_lens.tolist(), cu_q.tolist()
    for index, length in enumerate(lengths):
        if length < 0:
            raise CallError(
                wrong(
                    f"seq_lens[{index}]",
                    required="at least 0 tokens",
                    found=length,
                    remedy="pass the tokens that the cache holds of each sequence",
                )
            )
        if length > most:
            raise CallError(
                wrong(
                    f"seq_lens[{index}]",
                    required=f"at most {most} tokens, the plan's max_context",
                    found=length,
                    remedy="plan for a larger max_context",
                )
            )
    if offsets[0] != 0 or offsets[-1] > tokens or any(b < a for a, b in pairwise(offsets)):
        raise CallError(
            wrong(
                "cu_q",
                required=f"offsets that never fall, from 0 to {tokens} rows of q",
                found=offsets if len(offsets) <= 8 else [*offsets[:4], "...", *offsets[-4:]],
                remedy="pass the cumulated query lengths, a zero first",
            )
        )
    for index, length in enumerate(lengths):
        if offsets[index] == offsets[index + 1]:
            continue
        named = page_table[index, : -(-length // page)]
        if named.numel():
            low, high = int(named.min()), int(named.max())
            if low < 0 or high >= pages:
                raise CallError(
                    wrong(
                        f"page_table[{index}]",
                        required=f"page numbers from 0 to {pages - 1}",
                        found=low if low < 0 else high,
                        remedy="pass the pages that hold the sequence",
                    )
                )


def check_features(features: Features) -> None:
    """Raise CallError for sinks or slopes that are no numbers, or a range that begins before the sequence does.

    A sink of -inf is none; a slope must be finite. A range may end behind its sequence.
    """
    for name, value, plain in (
        ("sinks", features.sinks, "numbers, or -inf for no sink"),
        ("alibi", features.alibi, "finite slopes"),
    ):
        if value is None:
            continue
        usable = value < torch.inf if name == "sinks" else value.isfinite()
        if not bool(usable.all()):
            head = int((~usable).nonzero()[0])
            raise CallError(
                wrong(f"{name}[{head}]", required=plain, found=float(value[head]), remedy="mend the model's parameter")
            )
    ranges = features.prefix_ranges
    if ranges is None:
        return
    early = ((ranges[..., 0] < 0) & (ranges[..., 0] < ranges[..., 1])).nonzero()
    if early.numel():
        sequence, place = early[0].tolist()
        raise CallError(
            wrong(
                f"prefix_ranges[{sequence}, {place}]",
                required="a begin of at least 0",
                found=ranges[sequence, place].tolist(),
                remedy="count positions from the first token of the sequence; begin = end = 0 is no range",
            )
        )


def check_pages(name: str, value: torch.Tensor, pages: int, *, distinct: bool) -> None:
    """Raise CallError for a page that does not exist or, if `distinct`, is named twice."""
    if not value.numel():
        return
    low, high = int(value.min()), int(value.max())
    if low < 0 or high >= pages:
        raise CallError(
            wrong(
                name,
                required=f"page numbers from 0 to {pages - 1}",
                found=low if low < 0 else high,
                remedy="pass pages of this cache",
            )
        )
    if distinct and value.unique().numel() != value.numel():
        raise CallError(
            wrong(name, required="each page once", found="one twice", remedy="name each page that is written once")
        )
