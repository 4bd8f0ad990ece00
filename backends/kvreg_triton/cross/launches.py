"""The launches that a variant makes for a request, as specializations: its launcher, run on tensors of no memory.

Tensors of torch's `meta` device have shapes, strides and a storage size, which is all that Triton looks at, so a cache
of 2 GiB and more costs nothing. The forms of one variant:

    write                                    rows of the model's dtype into the cache
    attend                                   prefill: one launch over whole contexts
    find peaks, lay out, attend pages        what goes before and behind it where rows are laid out first
    attend split, attend whole, reduce       decode: as a context is cut, as it stays whole, and the reduction
    attend shares, reduce shares             decode in equal shares, where the launcher has them

`wide` names a form of the same launch with a cache above 2 GiB. Only AMD's compiler makes other code of it (buffer
loads need an offset of 32 bits), and elsewhere the two are one specialization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from kvreg.core.devices import Device
from kvreg.core.errors import UsageError, wrong
from kvreg.core.formats import E4M3FN, fp8_type
from kvreg.core.layouts import default
from kvreg.core.modes import Mode
from kvreg.core.requests import Op, Request
from kvreg.core.variants import Variant
from kvreg.runtime.launchers import AttendCall, CacheView, SplitPlan, load
from kvreg.testing import caches
from kvreg_triton.cross.specializations import Specialization, Target, recording, target_of
from kvreg_triton.launch import INTERPRETED

WIDE_BYTES = 1 << 31
"""The storage from which Triton's AMD backend gives up 32-bit offsets: it looks for at most 2**31 - 1."""

AS_RECORDED: Target = ("cuda", 80, 32)
"""What launches for Intel are recorded as: Triton's own wheel has no such backend. What Triton sees of arguments
(multiples of 16, ones) is the same there, and num_warps and num_stages, which a launch names, every backend has."""

_SMALL_PAGES = 64
_TOKENS = 64
"""Rows of a call: a multiple of 16, as a served batch usually is."""
_LONG_TOKENS = 1024
"""The same of prefill: enough for one sequence to fill several blocks of query rows."""
_SPLITS = 4
_SHARES = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """One specialization and what it is called by."""

    form: str
    """`attend split`, `reduce` and the others above; with `, wide` for a cache above 2 GiB."""
    specialization: Specialization

    @property
    def reduces(self) -> bool:
        """Whether it only moves or adds up what others use or found, and needs no matrix instruction for it."""
        return not self.form.startswith(("attend", "write"))


def launches(
    variant: Variant, device: Device, request: Request, config: Mapping[str, int], target: Target | None = None
) -> tuple[Launch, ...]:
    """Return every launch that `variant` makes for `request` with `config`, none compiled and none made.

    Raises UsageError in a process whose kernels the interpreter runs: those are never compiled.
    """
    if INTERPRETED:
        raise UsageError(
            wrong("TRITON_INTERPRET", required="0 where kernels are compiled", found="1", remedy="unset it")
        )
    target = target_of(device) if target is None else target
    found: dict[str, Launch] = {}
    for wide in (False, True):
        cache = _cache(variant.mode, device, request, wide)
        for form, call in _calls(variant, request, cache, config):
            with recording(AS_RECORDED if target[0] == "xpu" else target) as recorded:
                call()
            names: list[str] = []
            for one in (replace(each, target=target) for each in recorded):
                names.append(name := _named(one.kernel.rpartition(":")[2], form, names))
                found.setdefault(one.digest, Launch(f"{name}, wide" if wide else name, one))
    return tuple(found.values())


def _named(kernel: str, form: str, before: Sequence[str]) -> str:
    """Return what a kernel of a launch is called: before attention, and behind a split or shared one, come others."""
    if form == "write" or kernel.startswith("attend"):
        return f"{form} pages" if form in before else form
    if not kernel.startswith(("join", "reduce")):
        return kernel.replace("_", " ")  # what goes before attention
    return "reduce shares" if form == "attend shares" else "reduce"


def _cache(mode: Mode, device: Device, request: Request, wide: bool) -> CacheView:
    layout = request.layout or default(mode)
    page_bytes = mode.bytes_per_token_head(request.head_size, request.dtype) * request.kv_heads * request.page
    pages = WIDE_BYTES // page_bytes + 1 if wide else _SMALL_PAGES
    cache = caches.allocate(
        mode,
        pages=pages,
        page=request.page,
        kv_heads=request.kv_heads,
        head_size=request.head_size,
        dtype=request.dtype,
        layout=layout,
        device="meta",
        fp8=fp8_type(device) or E4M3FN,
    )
    return CacheView(**cache.fields())


def _calls(variant: Variant, request: Request, cache: CacheView, config: Mapping[str, int]) -> list[tuple[str, Any]]:
    launcher, dtype = load(variant.launcher), caches.DTYPES[request.dtype]
    if variant.op is Op.WRITE:
        rows = [_like((_TOKENS, request.kv_heads, request.head_size), dtype) for _ in range(2)]
        slots = _like((_TOKENS,), torch.int64)
        return [("write", lambda: launcher(cache, *rows, slots, config))]

    def attend(plan: SplitPlan) -> Any:
        tokens = _LONG_TOKENS if variant.op is Op.PREFILL else _TOKENS
        q, out = (_like((tokens, request.q_heads, request.head_size), dtype) for _ in range(2))
        table = _like((_TOKENS, -(-request.context // request.page)), torch.int32)
        lens, cuts = _like((_TOKENS,), torch.int32), _like((_TOKENS + 1,), torch.int32)
        # The scale is an argument of run time: its value is nothing to the compiler.
        return lambda: launcher(AttendCall(q, cache, table, lens, cuts, out, None, 0.125, plan), config)

    whole = SplitPlan(1, 0, None, None)
    if variant.op is Op.PREFILL:
        return [("attend", attend(whole))]
    places = (_TOKENS * _SPLITS, request.q_heads)
    split = SplitPlan(
        _SPLITS,
        0,
        _like((*places, request.head_size), torch.float32),
        _like((*places, 2), torch.float32),
    )
    made = [("attend split", attend(split)), ("attend whole", attend(whole))]
    if hasattr(launcher, "shares"):
        made.append(("attend shares", attend(replace(split, shares=_SHARES))))
    return made


def _like(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
