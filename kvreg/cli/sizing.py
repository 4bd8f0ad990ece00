"""How large a cache is in each mode, for people: beside bf16, and what of it fits the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvreg.cli import render
from kvreg.core.modes import Mode

if TYPE_CHECKING:
    from kvreg.core.sizing import CacheSize


def show(sizes: Mapping[Mode, CacheSize], verdicts: Mapping[Mode, str], batch: int, context: int) -> None:
    """Print how large a cache is in each mode, beside bf16, and what of it fits the card."""
    first = next(iter(sizes.values()))
    render.table(
        ("mode", "verdict", "cache GB", "bf16 GB", "x smaller", "sequences fit", "context fits"),
        [
            (
                mode,
                verdicts[mode],
                gigabytes(size.bytes),
                gigabytes(size.bf16_bytes),
                f"{size.compression:.2f}",
                size.sequences_fit,
                "any" if size.context_fit is None and size.memory_bytes is not None else size.context_fit,
            )
            for mode, size in sizes.items()
        ],
        title=f"cache of {first.layers} layers for {batch} sequences of {context} tokens",
    )
    if first.memory_bytes is None:
        render.line("the card's memory is unknown, so nothing is said to fit")
        return
    room = f"{gigabytes(first.memory_bytes)} GB of card memory"
    if first.weights_bytes:
        room += f" less {gigabytes(first.weights_bytes)} GB of weights"
    else:
        room += ", with nothing off for weights (--weights-gb N)"
    render.line(f"fit: how many sequences of {context} tokens, or what context for all {batch}, go into {room}")
    render.line("workspace and activations need memory too and are not counted")


def gigabytes(count: int) -> str:
    """Return bytes as GB of 10^9, three digits from one on."""
    return f"{count / 1e9:.3g}" if count < 100e9 else f"{count / 1e9:.0f}"
