"""How a variant stands on a device: the strongest evidence that counts there, and what is missing for more.

A trace counts where its kernel hash is the kernel's, its head size is the request's, the layout was in it and its
cells covered every feature of the request that concerns the op. Made on the very device it counts as it is; made on
another card of the same arch its numerics count as `arch` and its speed not at all. A cross build counts on every
card of its arch, for the launch parameters that were compiled; where the compiler's figures refused it, they are the
reason. A trace of another kernel is stale: it counts for nothing, but it is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvreg.core.buckets import bucket, stand_in
from kvreg.core.decisions import Reason
from kvreg.core.devices import Device
from kvreg.core.evidence import MOST_SPILL_BYTES, Evidence, Tier, Timing
from kvreg.core.index import Recorded
from kvreg.core.requests import Op, Request, concerns
from kvreg.core.selections import Note
from kvreg.core.variants import Variant

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

ALLOWABLE = (Tier.INTERPRETED,)
"""Tiers that `--allow` can add to measured and compiled."""

COMPILABLE = ("cuda", "rocm", "xpu")
"""Platforms that can be compiled for without a card; `kvreg toolchain check` says with what."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Evidence for a variant as it counts on the device, or the reasons why there is none."""

    evidence: Evidence | None
    reasons: tuple[Reason, ...] = ()
    notes: tuple[Note, ...] = ()


def stand(
    variant: Variant,
    request: Request,
    device: Device,
    kernel_hash: str | None,
    records: Iterable[Recorded],
    allow: Sequence[str] = (),
) -> Standing:
    """Return how `variant` stands; `records` are those of the device, its parent and its arch, in any order.

    `kernel_hash` None means that the variant's source cannot be hashed; nothing counts for it then.
    """
    layout = str(request.stored_layout)
    own = [each for each in records if each.evidence.variant == str(variant.id) and each.evidence.op == variant.op]
    if variant.needs_card:
        own = [each for each in own if each.evidence.numerics != "interpreter"]
    fresh = [each for each in own if each.evidence.kernel_hash == kernel_hash]
    there = [each for each in fresh if layout in each.evidence.layouts]
    if not there:
        return Standing(None, (_missing(variant, request, device, kernel_hash, own, fresh),))
    asked = [word for word in request.features if concerns(variant.op, word)]
    newest = sorted(there, key=lambda each: each.ended, reverse=True)
    best = min(
        newest, key=lambda each: (not set(asked) <= {*each.evidence.features}, *_preference(each.evidence, device))
    )
    evidence = as_on(best.evidence, device)
    if evidence.refusals:
        return Standing(evidence, tuple(_by_figures(evidence)))
    lacking = tuple(word for word in asked if word not in evidence.features)
    if lacking:
        return Standing(evidence, (_uncovered(variant, request, device, best.evidence, lacking),))
    if evidence.tier is Tier.DECLARED or (evidence.tier in ALLOWABLE and evidence.tier not in allow):
        return Standing(evidence, (_too_weak(variant, request, device, evidence),))
    default = dict(variant.default_config(device, request))
    if evidence.build == "cross" and dict(evidence.config) != default:
        return Standing(evidence, (_other_config(variant, request, device, evidence, default),))
    return Standing(evidence, (), tuple(_notes(best.evidence, device)))


def switched_off(variant: str, device: Device, exceptions: Iterable[Touching]) -> Iterable[Reason]:
    """Yield a reason for each recorded exception that takes away what validates a variant (`name@version`) here."""
    for each in exceptions:
        if variant in each.invalidates:
            yield Reason(
                "expectation",
                "evidence",
                f"its correctness test to count on {device.key}",
                f"{each.expect} of {each.test} ({each.when})",
                f"run `kvreg deselections show {each.id}`; mend the kernel, then remove that entry",
            )


def known_exception(each: Touching) -> Note:
    """Return the note on a recorded exception that leaves its variants validated."""
    until = f", review by {each.review_by}" if each.review_by else ""
    return Note("expectation", f"{each.expect} of {each.test} ({each.when}){until}: {each.issue or 'no issue named'}")


def as_on(evidence: Evidence, device: Device) -> Evidence:
    """Return evidence as it counts on `device`, which has the arch that it was made on."""
    if evidence.device == device.key:
        return evidence
    numerics = "arch" if evidence.numerics == "device" else evidence.numerics
    return replace(evidence, numerics=numerics, speed="none", timings=())


def measured_at(evidence: Evidence, op: Op, request: Request) -> Timing | None:
    """Return the timing of the request's bucket, or of the next larger one; None when there is none."""
    points = {
        bucket(op, each.batch, each.context): each
        for each in evidence.timings
        if op is Op.WRITE or each.group == request.group
    }
    nearest = stand_in(bucket(op, request.batch, request.context), points)
    return points[nearest] if nearest is not None else None


def validate_command(request: Request, device: Device, variant: Variant, *, stale: bool = False) -> str:
    """Return the command that would give a variant the evidence it lacks."""
    if stale:
        return f"kvreg validate --device {device.key} --stale"
    return f"kvreg validate --device {device.key} --mode {variant.mode} --head-size {request.head_size}"


def runs(request: Request, device: Device, variant: Variant) -> str:
    """Return how a variant gets the evidence that it lacks: on the card, or from the compiler without one."""
    command = validate_command(request, device, variant)
    if device.platform == "cpu":
        return f"run `{command}`"
    if device.platform not in COMPILABLE or variant.needs_card:
        return f"run `{command}` where such a card is"
    return f"run `{command} --compile`, which needs no card, or without --compile where such a card is"


def _preference(evidence: Evidence, device: Device) -> tuple[int, int, str]:
    nearness = 0 if evidence.device == device.key else 1 if evidence.device == device.parent else 2
    return as_on(evidence, device).tier.rank, nearness, evidence.device


def _missing(
    variant: Variant,
    request: Request,
    device: Device,
    kernel_hash: str | None,
    own: Sequence[Recorded],
    fresh: Sequence[Recorded],
) -> Reason:
    run = runs(request, device, variant)
    if fresh:
        seen = sorted({layout for each in fresh for layout in each.evidence.layouts})
        return Reason(
            "evidence",
            "evidence",
            f"a trace with layout {request.stored_layout}",
            f"traces with {', '.join(seen)}",
            run,
        )
    if own:
        newest = max(own, key=lambda each: each.ended)
        again = f"run `{validate_command(request, device, variant, stale=True)}` where such a card is"
        if newest.evidence.build == "cross":
            again = run
        return Reason(
            "stale",
            "evidence",
            f"a trace of the kernel as it is ({(kernel_hash or 'unknown')[:8]})",
            f"{newest.evidence.trace} of kernel {newest.evidence.kernel_hash[:8]}",
            again,
        )
    where = device.key if device.arch == device.key else f"{device.key} or another {device.arch}"
    return Reason("evidence", "evidence", f"a trace for head size {request.head_size} on {where}", "none", run)


def _uncovered(
    variant: Variant, request: Request, device: Device, evidence: Evidence, lacking: Sequence[str]
) -> Reason:
    run = f"{validate_command(request, device, variant)} --features"
    where = "" if device.platform == "cpu" else " where such a card is"
    return Reason(
        "feature_evidence",
        "evidence",
        f"a trace that covers {', '.join(lacking)}",
        f"{evidence.trace} with {', '.join(evidence.features)}",
        f"run `{run}`{where}",
    )


def _too_weak(variant: Variant, request: Request, device: Device, evidence: Evidence) -> Reason:
    remedy = runs(request, device, variant)
    if evidence.tier in ALLOWABLE:
        remedy = f"add --allow {evidence.tier}, or {remedy}"
    return Reason("evidence", "evidence", "measured or compiled", str(evidence.tier), remedy)


def _by_figures(evidence: Evidence) -> Iterable[Reason]:
    remedy = f"`kvreg evidence show {evidence.trace}` lists the launch parameters that were tried"
    for each in evidence.refusals:
        yield Reason(each.code, each.field, each.required, each.found, remedy)


def _other_config(
    variant: Variant, request: Request, device: Device, evidence: Evidence, default: Mapping[str, int]
) -> Reason:
    differing = [name for name, value in default.items() if evidence.config.get(name) != value]
    return Reason(
        "config_evidence",
        "launch parameters",
        ", ".join(f"{name} {evidence.config.get(name)}" for name in differing) + " as compiled",
        ", ".join(f"{name} {default[name]}" for name in differing) + f" for a group of {request.group}",
        f"run `{validate_command(request, device, variant)}` where such a card is",
    )


def _notes(evidence: Evidence, device: Device) -> Iterable[Note]:
    if evidence.build == "cross":
        triton = evidence.versions.get("triton", "an unknown release")
        yield Note(
            "never_run",
            f"compiled for {evidence.arch} by Triton {triton}, never run there; numerics by the interpreter, no speed",
        )
        spilled = evidence.resources.get("spill_bytes")
        if spilled is not None and spilled > MOST_SPILL_BYTES:
            text = f"{evidence.variant} spills {spilled} bytes a thread on {evidence.arch}"
            yield Note("spills", f"{text}, the least of all launch parameters that were tried")
    elif evidence.device != device.key:
        yield Note(
            "arch_evidence",
            f"numerics measured on {evidence.device}, which has the same {device.arch}; no speed of its own",
        )
