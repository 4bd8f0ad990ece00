"""From what a user asks to the subjects of a run: variants that serve the shape, each with its buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvreg.core.buckets import Bucket
from kvreg.core.constraints import failed
from kvreg.core.devices import Device
from kvreg.core.errors import Refused, UsageError, wrong
from kvreg.core.kernelhash import kernel_hash
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg_tuning.spaces import Space, space_of
from kvreg_tuning.subjects import Subject, offered
from kvreg_tuning.workloads import Shape, Workload, single

HOST = Workload(
    "host",
    {
        Op.WRITE: (Bucket(32, 0), Bucket(1024, 0)),
        Op.DECODE: (Bucket(1, 1024),),
        Op.PREFILL: (Bucket(1, 512),),
    },
)
"""What the device `cpu` is tuned for when nothing is named: work that a laptop does in a fraction of a second."""

HOST_BUDGET_S = 100.0
HOST_MODE = Mode.INT4_PER_TOKEN_HEAD
"""What such a run takes at most when no budget is named, and the mode that it tunes when none is: a first try ends
before anybody loses patience."""

CARD = replace(single(32, 8192), name="select's own")
"""What a card is tuned for then: the batch and context that select assumes."""


def assumed_workload(device: Device) -> Workload:
    """Return the workload of a run that names none."""
    return HOST if device.platform == "cpu" else CARD


def spaces_of(
    device: Device,
    shapes: Sequence[Shape],
    *,
    modes: Sequence[Mode] = (),
    ops: Sequence[Op] = (),
    names: Sequence[str] = (),
    family: str | None = None,
) -> tuple[Space, ...]:
    """Return a space for each variant that serves a shape, without repetition.

    `names`: variants (NAME or NAME@VERSION), none for all. Raises UsageError for an unknown one, Refused when nothing
    is left.
    """
    known = offered(device.platform)
    _require_names(names, known)
    wanted: dict[Subject, dict[Bucket, None]] = {}
    reasons: list[str] = []
    for shape in shapes:
        for _, variant in known.values():
            if (modes and variant.mode not in modes) or (ops and variant.op not in ops):
                continue
            if names and not {variant.id.name, str(variant.id)} & set(names):
                continue
            buckets = shape.workload.buckets.get(variant.op, ())
            missed = failed(variant, _request(device, variant, shape), device, family)
            reasons += [str(reason) for reason in missed]
            if buckets and not missed:
                wanted.setdefault(_subject(device, variant, shape), {}).update(dict.fromkeys(buckets))
    if not wanted:
        raise Refused(reasons[0] if reasons else _nothing(device, shapes, ops))
    # A hash takes half a second, and variants have many shapes.
    hashes = {name: kernel_hash(known[name][1]) for name in {of.variant for of in wanted}}
    return tuple(
        space_of(of, *known[of.variant], device, tuple(buckets), hashes[of.variant]) for of, buckets in wanted.items()
    )


def plain_shapes(
    head_sizes: Iterable[int], group: int, kv_heads: int, dtype: str, features: tuple[str, ...], workload: Workload
) -> Iterator[Shape]:
    """Yield one shape for each head size, for a run that names no model."""
    for head_size in head_sizes:
        yield Shape((), head_size, group * kv_heads, kv_heads, dtype, features, workload)


def _request(device: Device, variant: Variant, shape: Shape) -> Request:
    return Request(
        device=device.key,
        mode=variant.mode,
        head_size=shape.head_size,
        q_heads=shape.q_heads,
        kv_heads=shape.kv_heads,
        dtype=shape.dtype,
        features=shape.features,
    )


def _subject(device: Device, variant: Variant, shape: Shape) -> Subject:
    return Subject(
        device=device.key,
        variant=str(variant.id),
        op=variant.op.value,
        mode=variant.mode.value,
        head_size=shape.head_size,
        group=shape.q_heads // shape.kv_heads,
        kv_heads=shape.kv_heads,
        dtype=shape.dtype,
        features=shape.features,
    )


def _require_names(names: Sequence[str], known: Iterable[str]) -> None:
    words = {word for each in known for word in (each, each.partition("@")[0])}
    for name in names:
        if name not in words:
            message = wrong("--variant", required=f"one of {', '.join(known)}", found=repr(name), remedy="take one")
            raise UsageError(message, candidates=tuple(known))


def _nothing(device: Device, shapes: Sequence[Shape], ops: Sequence[Op]) -> str:
    sizes = ", ".join(dict.fromkeys(str(shape.head_size) for shape in shapes))
    workloads = ", ".join(dict.fromkeys(shape.workload.name for shape in shapes))
    return wrong(
        f"tune {device.key}",
        required="a variant with a bucket to be tuned for",
        found=f"none for {', '.join(ops) or 'any op'} at head size {sizes} in workload {workloads}",
        remedy="name another mode, op or workload",
    )
