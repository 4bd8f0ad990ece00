"""The configs that are tried for a subject: every combination of the space, and those of them that need no trial.

A config is the variant's default with some parameters changed, so that a launcher finds all it reads. Order is part
of the contract: among equals the earlier one wins, and a resumed run walks the same way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvreg.core.backends import Backend
from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.kernelhash import kernel_hash
from kvreg.core.launchable import Launchable
from kvreg.core.variants import Variant
from kvreg_tuning.subjects import Config, Subject, text_of


@dataclass(frozen=True, slots=True)
class Candidates:
    """The space of a subject over its buckets."""

    knobs: Mapping[str, tuple[int, ...]]
    """The parameters that are searched, each with its values in ascending order of the space."""
    configs: tuple[Config, ...]
    """What is worth a trial in some bucket; the default is the first, whether it lies in the space or not."""
    pruned: tuple[tuple[Config, str, str], ...]
    """(config, bucket, why no trial is needed)."""

    def left_out(self) -> Mapping[tuple[str, str], str]:
        """Return the reasons by the config's text and the bucket."""
        return {(text_of(config), bucket): reason for config, bucket, reason in self.pruned}


@dataclass(frozen=True, slots=True)
class Space:
    """A subject with its buckets and all that may be tried."""

    subject: Subject
    buckets: tuple[Bucket, ...]
    candidates: Candidates
    kernel_hash: str
    tuned_dir: Path | None = None
    """Where the backend that offers the variant keeps its tuned files."""
    launchable: Launchable | None = None
    """What the variant can be launched with; None where nobody offers it here."""


def space_of(
    subject: Subject,
    backend: Backend,
    variant: Variant,
    device: Device,
    buckets: tuple[Bucket, ...],
    hashed: str | None = None,
) -> Space:
    """Return the space of a variant as its backend states it; `hashed`: its kernel's hash, where that is known."""
    found = enumerate_configs(subject, backend, variant, device, buckets)
    launchable = Launchable(backend, variant, device, subject.request(buckets[0]))
    return Space(subject, buckets, found, hashed or kernel_hash(variant), backend.tuned_dir, launchable)


def enumerate_configs(
    subject: Subject, backend: Backend, variant: Variant, device: Device, buckets: Sequence[Bucket]
) -> Candidates:
    """Return the space of a subject: the union over its buckets, the default in front."""
    requests = {bucket: subject.request(bucket) for bucket in buckets}
    default = default_of(subject, variant, device, buckets[0])
    knobs: dict[str, tuple[int, ...]] = {}
    for request in requests.values():
        for name, values in backend.space(variant, device, request).items():
            knobs[name] = tuple(dict.fromkeys((*knobs.get(name, ()), *values)))
    combined = [{**default, **dict(zip(knobs, values, strict=True))} for values in itertools.product(*knobs.values())]
    every = (default, *(config for config in combined if config != default))
    pruned = tuple(
        (config, str(bucket), reason)
        for config in every[1:]
        for bucket, request in requests.items()
        if (reason := backend.unfit(variant, device, request, config)) is not None
    )
    counts = Counter(text_of(config) for config, *_ in pruned)
    left = tuple(config for config in every if counts[text_of(config)] < len(buckets))
    return Candidates(knobs, left, pruned)


def default_of(subject: Subject, variant: Variant, device: Device, bucket: Bucket) -> Config:
    """Return the launch parameters that the variant gets where nothing was tuned."""
    return dict(variant.default_config(device, subject.request(bucket)))
