"""Which variants and head sizes lack current evidence: never validated, validated as another kernel, or for less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvreg.core.devices import folder_name
from kvreg.core.evidence import tier
from kvreg.core.index import Index
from kvreg.core.variants import Variant
from kvreg.validation.cells import Profile, work_list
from kvreg.validation.machine import Machine


def lacking(
    machine: Machine,
    variants: Sequence[Variant],
    head_sizes: Sequence[int],
    hashes: Mapping[str, str],
    index: Index,
    profile: Profile,
) -> list[tuple[Variant, int]]:
    """Return the pairs without a sound trace of the present kernel that is as strong as this run's would be.

    As strong: of no weaker tier, and covering every feature that the cells of `profile` would cover.
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
        fresh = [
            each
            for each in recorded
            if each.kernel_hash == hashes[str(variant.id)] and each.tier.rank <= would_be.rank
        ]
        for size in sorted({*head_sizes, *(each.head_size for each in recorded)}):
            covered = covered_by(variant, size, profile)
            if not any(each.head_size == size and covered <= set(each.features) for each in fresh):
                found.append((variant, size))
    return found


def covered_by(variant: Variant, head_size: int, profile: Profile) -> frozenset[str]:
    """Return the feature words that a validation with `profile` covers."""
    return frozenset(word for cell in work_list([variant], [head_size], profile) for word in cell.covered)
