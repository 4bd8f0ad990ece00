"""What a variant requires of a request and a device, and every requirement that is not met as a Reason.

All failed constraints are collected: a user who must change three things learns of all three at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvreg.core.decisions import Reason
from kvreg.core.devices import Device
from kvreg.core.formats import fp8_type
from kvreg.core.layouts import known
from kvreg.core.modes import Mode
from kvreg.core.requests import Request, concerns
from kvreg.core.variants import Constraints, Variant

ORDER = (
    "head_size",
    "fp8_type",
    "q_heads",
    "dtype",
    "arch",
    "capability",
    "layout",
    "feature",
    "page",
    "group",
    "accuracy",
    "family",
    "format",
    "no_variant",
    "expectation",
    "compile",
    "threads",
    "shared_memory",
    "matrix_instruction",
    "spills",
    "stale",
    "evidence",
    "feature_evidence",
    "config_evidence",
)
"""Reason codes, what a request can never get over first; the one line of a refusal quotes the first of these."""

ANY_VARIANT = Constraints(dtypes=("bf16", "fp16", "fp32"), group_max=1 << 30)
"""What every variant of every mode requires: judged where a mode has no variant yet."""


def failed(variant: Variant, request: Request, device: Device, backend: str | None = None) -> list[Reason]:
    """Return every constraint of `variant` that the request or the device fails, in ORDER; empty means served.

    `backend` is the family that KVREG_BACKEND insists on, None for any.
    """
    # A feature that is nothing to the op cannot be missing from its variants.
    asked = replace(request, features=tuple(word for word in request.features if concerns(variant.op, word)))
    reasons = [
        *request_failed(variant.constraints, asked, device),
        *_mode_fp8(variant, device),
        *_accuracy(variant, request),
        *_family(variant, backend),
    ]
    return by_order(reasons)


def request_failed(constraints: Constraints, request: Request, device: Device) -> list[Reason]:
    """Return what fails of a set of constraints, whatever variant they belong to."""
    return by_order(
        [
            *_head_size(constraints, request),
            *_q_heads(request),
            *_dtype(constraints, request, device),
            *_arch(constraints, device),
            *_layout(constraints, request),
            *_features(constraints, request),
            *_page(constraints, request),
            *_group(constraints, request),
            *_fp8(constraints.needs_fp8, device),
        ]
    )


def mode_failed(mode: Mode, request: Request, device: Device) -> list[Reason]:
    """Return what stands against a mode on a device before any variant is looked at."""
    return by_order(
        [
            *_head_size(ANY_VARIANT, request),
            *_q_heads(request),
            *_native_bf16(request, device),
            *_fp8(fp8_type(device) if mode.is_fp8 else None, device),
        ]
    )


def by_order(reasons: Iterable[Reason]) -> list[Reason]:
    """Return the reasons as ORDER has them; codes that it does not name come last."""
    return sorted(reasons, key=lambda reason: ORDER.index(reason.code) if reason.code in ORDER else len(ORDER))


def legal_neighbours(value: int, least: int, most: int, step: int) -> tuple[int, int]:
    """Return the two legal values nearest to an illegal one; at an end of the range both lie on one side."""
    below = least + (value - least) // step * step
    if value < least:
        below = least
    elif below + step > most:
        below = max(most - step, least)
    return below, min(below + step, most)


def _stepped(
    code: str, value: int, least: int, most: int, step: int, option: str, otherwise: str = ""
) -> Iterator[Reason]:
    if least <= value <= most and (value - least) % step == 0:
        return
    below, above = legal_neighbours(value, least, most, step)
    yield Reason(
        code,
        code,
        f"a multiple of {step} from {least} to {most}",
        str(value),
        f"the nearest are {option} {below} and {above}{otherwise}",
    )


def _head_size(constraints: Constraints, request: Request) -> Iterator[Reason]:
    c, size = constraints, request.head_size
    otherwise = f", should {size} be mistyped; a model that has it needs another mode or device"
    return _stepped("head_size", size, c.head_min, c.head_max, c.head_step, "--head-size", otherwise)


def _page(constraints: Constraints, request: Request) -> Iterator[Reason]:
    c = constraints
    return _stepped("page", request.page, c.page_min, c.page_max, c.page_step, "--page")


def _q_heads(request: Request) -> Iterator[Reason]:
    heads, kv_heads = request.q_heads, request.kv_heads
    if heads % kv_heads == 0:
        return
    below = heads // kv_heads * kv_heads
    legal = [str(count) for count in (below, below + kv_heads) if count]
    yield Reason(
        "q_heads",
        "q_heads",
        f"a multiple of the {kv_heads} KV heads",
        str(heads),
        f"the nearest are --q-heads {' and '.join(legal)}",
    )


def _group(constraints: Constraints, request: Request) -> Iterator[Reason]:
    if request.group > constraints.group_max:
        yield Reason(
            "group",
            "q_heads / kv_heads",
            f"at most {constraints.group_max} query heads for each KV head",
            str(request.group),
            f"give each KV head at most {constraints.group_max} query heads",
        )


def _dtype(constraints: Constraints, request: Request, device: Device) -> Iterator[Reason]:
    if request.dtype not in constraints.dtypes:
        yield Reason(
            "dtype",
            "dtype",
            _either(constraints.dtypes),
            request.dtype,
            f"run the model in --dtype {constraints.dtypes[0]}",
        )
    else:
        yield from _native_bf16(request, device)


def _native_bf16(request: Request, device: Device) -> Iterator[Reason]:
    """Below sm_80 there is no bf16 unit: Triton emulates it or fails to compile. None, unknown, refuses nothing."""
    if request.dtype == "bf16" and device.bf16_native is False and device.platform != "cpu":
        yield Reason(
            "dtype",
            "dtype",
            f"fp16 on {device.arch}, which has no bf16 unit",
            "bf16",
            "run the model in --dtype fp16",
        )


def _arch(constraints: Constraints, device: Device) -> Iterator[Reason]:
    if constraints.archs and device.arch not in constraints.archs:
        yield Reason(
            "arch",
            "arch",
            _either(constraints.archs),
            device.arch,
            "a portable variant serves the other archs",
        )
    least, found = constraints.min_capability, device.capability
    if least is not None and found is not None and found < least:
        yield Reason(
            "capability",
            "compute capability",
            f"at least {least[0]}.{least[1]}",
            f"{found[0]}.{found[1]} ({device.arch})",
            "a portable variant serves older cards",
        )


def _layout(constraints: Constraints, request: Request) -> Iterator[Reason]:
    layout = str(request.stored_layout)
    served = [each for each in known(request.mode) if each in constraints.layouts]
    if not served:
        yield Reason(
            "layout",
            "layout",
            _either(known(request.mode)),
            f"a variant of {_either(constraints.layouts) or 'no layout'} alone",
            "its backend must declare a layout that the mode has",
        )
    elif layout not in served:
        yield Reason(
            "layout",
            "layout",
            _either(served),
            layout,
            f"take --layout {served[0]}",
        )


def _features(constraints: Constraints, request: Request) -> Iterator[Reason]:
    for word in request.features:
        if word not in constraints.features:
            yield Reason(
                "feature",
                "feature",
                _either(constraints.features),
                word,
                f"leave {word} out, or serve these layers without quantization elsewhere",
            )


def _fp8(needed: str | None, device: Device) -> Iterator[Reason]:
    """An arch whose fp8 types nobody has listed (empty) refuses nothing: unknown is not missing."""
    needed = fp8_type(device) if needed == "e4m3" else needed
    if needed is None or not device.fp8_triton or needed in device.fp8_triton:
        return
    yield Reason(
        "fp8_type",
        "fp8 type",
        f"{needed} on {device.arch}",
        f"only {' and '.join(device.fp8_triton)}",
        f"take --mode {Mode.INT8_PER_TOKEN_HEAD}, which stores 8 bits too and needs no fp8 type",
    )


def _mode_fp8(variant: Variant, device: Device) -> Iterator[Reason]:
    """What the mode's format needs of the arch, whatever the variant declares: e4m3fn here, e4m3fnuz on gfx94x."""
    if variant.mode.is_fp8 and variant.constraints.needs_fp8 is None:
        yield from _fp8(fp8_type(device), device)


def _accuracy(variant: Variant, request: Request) -> Iterator[Reason]:
    if variant.accuracy == "fast" and request.accuracy == "exact":
        yield Reason("accuracy", "accuracy", "exact", "fast", "allow it with --accuracy fast")


def _family(variant: Variant, backend: str | None) -> Iterator[Reason]:
    if backend is not None and variant.family != backend:
        yield Reason("family", "KVREG_BACKEND", backend, variant.family, "unset KVREG_BACKEND to take any family")


def _either(values: Iterable[str]) -> str:
    return " or ".join(values)
