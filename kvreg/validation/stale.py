"""Which variants and head sizes lack current evidence: never validated, or validated as another kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import folder_name
from kvreg.core.evidence import Evidence, tier
from kvreg.core.index import Index
from kvreg.core.variants import Variant
from kvreg.validation.machine import Machine


def lacking(
    machine: Machine,
    variants: Sequence[Variant],
    head_sizes: Sequence[int],
    hashes: Mapping[str, str],
    index: Index,
) -> list[tuple[Variant, int]]:
    """Return the pairs without a sound trace of the present kernel that is as strong as this run's would be.

    Head sizes that are on record for a variant count too, beside those of `head_sizes`: a kernel that changed has
    made them stale.
    """
    folder = folder_name(machine.device.key)
    would_be = tier(machine.numerics, "device" if machine.numerics == "device" else "none")
    found = []
    for variant in variants:
        mode, backend = str(variant.mode), machine.owner(variant)
        recorded = [
            each.evidence
            for size in index.head_sizes(backend, folder, mode)
            for each in index.evidence(backend, folder, mode, size)
            if each.evidence.variant == str(variant.id)
        ]
        current = {each.head_size for each in recorded if _holds(each, hashes[str(variant.id)], would_be.rank)}
        for size in sorted({*head_sizes, *(each.head_size for each in recorded)} - current):
            found.append((variant, size))
    return found


def _holds(evidence: Evidence, kernel_hash: str, rank: int) -> bool:
    return evidence.kernel_hash == kernel_hash and evidence.tier.rank <= rank
