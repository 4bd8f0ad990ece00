"""From what a caller says to a Selection: values checked, defaults filled in and listed as assumed, then selected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args

from kvreg.core import resolve
from kvreg.core.environment import read
from kvreg.core.errors import UsageError, shown, wrong
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.near import completed
from kvreg.core.requests import DTYPES, FEATURES, Accuracy, Request
from kvreg.core.scalars import whole
from kvreg.core.select import select
from kvreg.core.selections import Selection
from kvreg.core.standing import ALLOWABLE

MASKS = ("causal", "non_causal", "per_sequence_causal")
"""Feature words that say what a query may see; without one of them causal is assumed."""

_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Request) if each.default is not MISSING}
INT32 = 2**31 - 1
_COUNTS = {"q_heads": INT32, "kv_heads": 65535, "page": INT32, "batch": INT32, "context": INT32}
"""Counts and their largest values: lengths, offsets and page numbers are int32; KV heads are blocks of a launch grid's
second axis, and no card takes more there."""


def ask(
    device: str | None,
    mode: Mode | str | None,
    head_size: int,
    *,
    q_heads: int | None = None,
    kv_heads: int | None = None,
    page: int | None = None,
    dtype: str | None = None,
    features: Sequence[str] | None = None,
    batch: int | None = None,
    context: int | None = None,
    layout: LayoutId | str | None = None,
    accuracy: Accuracy | None = None,
    allow: Sequence[str] = (),
) -> Selection:
    """Return which validated variants serve a KV cache mode on a device; public as `kvreg.select`.

        kvreg.select("h200", "int4_per_token_head", 96).result.ops["decode"].variant
        kvreg.select("h200", "all", 96)                       # every mode, refused ones with their reasons
        kvreg.select(None, "none", 128, q_heads=28, kv_heads=4, page=528)     # this machine's card

    `device`: key, marketing name, arch or PCI id; None takes KVREG_DEVICE, else this machine's card. `mode`: one mode,
    or None or "all". What is None is assumed and listed in `request.assumed`: 32 `q_heads`, 8 `kv_heads`, `page` 16
    (token slots), `dtype` bf16, `features` ("causal",), `batch` 32 sequences, `context` 8192 tokens, `layout`
    the mode's own (planar.2 of int4, else planar.1), `accuracy` exact. `allow`: ("interpreted",) takes variants that
    only the interpreter has proved.

    A refusal is a result, not an error: `Selection.result` raises Refused. Raises UnknownDevice, UsageError for a
    word or count of no meaning, BadEnvironment, and DeviceUnavailable where there is no card and none was named.
    """
    environment = read()
    resolution = resolve.resolve(device) if device is not None else resolve.default_device(environment.device)
    request = make_request(
        resolution.device.key,
        mode,
        head_size,
        q_heads=q_heads,
        kv_heads=kv_heads,
        page=page,
        dtype=dtype,
        features=features,
        batch=batch,
        context=context,
        layout=layout,
        accuracy=accuracy,
    )
    return select(request, resolution, environment, _words("allow", allow, ALLOWABLE))


def make_request(
    device: str,
    mode: Mode | str | None,
    head_size: int,
    *,
    q_heads: int | None = None,
    kv_heads: int | None = None,
    page: int | None = None,
    dtype: str | None = None,
    features: Sequence[str] | None = None,
    batch: int | None = None,
    context: int | None = None,
    layout: LayoutId | str | None = None,
    accuracy: Accuracy | str | None = None,
) -> Request:
    """Return the request of a resolved device key; None takes the default, which `assumed` then names.

    `mode` None or "all" asks for every mode. Raises UsageError for a value of no meaning (an unknown word, a count
    below one); a value that is merely not served is for select to refuse.
    """
    given: dict[str, Any] = {
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "page": page,
        "dtype": dtype,
        "features": features,
        "batch": batch,
        "context": context,
        "layout": None if layout is None else LayoutId.of(layout),
        "accuracy": accuracy,
    }
    assumed = [name for name, value in given.items() if value is None]
    values = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
    for name, most in _COUNTS.items():
        values[name] = _count(name, values[name], most)
    head_size = _count("head_size", head_size, INT32)
    _count("batch x context", values["batch"] * values["context"], INT32 * values["page"])
    _known("dtype", values["dtype"], DTYPES)
    _known("accuracy", values["accuracy"], get_args(Accuracy))
    values["features"], mask_assumed = _features(values["features"])
    if mask_assumed and "features" not in assumed:
        assumed.append("features")
    return Request(device=device, mode=parse_mode(mode), head_size=head_size, assumed=tuple(assumed), **values)


_VLLM_WORDS: dict[str, Mode | None] = {
    "auto": Mode.NONE,
    "bfloat16": Mode.NONE,
    "float16": Mode.NONE,
    "fp8": Mode.FP8_PER_TENSOR,
    "fp8_e4m3": Mode.FP8_PER_TENSOR,
    "fp8_e5m2": None,
}
"""`--kv-cache-dtype` of vLLM 0.33 and the mode that stores the same; None where there is none."""

_NO_E5M2 = "no mode stores e5m2 (vLLM's Triton backend stores e4m3 under that name); fp8_per_tensor stores e4m3"


def parse_mode(text: Mode | str | None) -> Mode | None:
    """Return the mode of a word, None for every mode (None, "all"). Raises UsageError with the nearest words.

    vLLM's words for its cache dtypes are no modes here, so that one thing has one name; they lead to theirs.
    """
    is_text = isinstance(text, str)
    if text is None or (is_text and text == "all"):
        return None
    if is_text and text in _VLLM_WORDS:
        mode = _VLLM_WORDS[text]
        remedy = f"take {mode}" if mode is not None else _NO_E5M2
        known = ", ".join(Mode)
        message = wrong("mode", required=f"one of {known}", found=f"{text!r}, a word of vLLM", remedy=remedy)
        raise UsageError(message, candidates=(mode or Mode.FP8_PER_TENSOR,))
    _known("mode", text, [mode.value for mode in Mode])
    return Mode(text)


def _features(words: object) -> tuple[tuple[str, ...], bool]:
    asked = _words("features", words, FEATURES)
    for word in asked:
        _known("feature", word, FEATURES)
    missing = not any(mask in asked for mask in MASKS)
    chosen = {*asked, "causal"} if missing else set(asked)
    return tuple(word for word in FEATURES if word in chosen), missing


def _words(field: str, value: Any, valid: Iterable[str]) -> tuple[Any, ...]:
    """Return the words of a list of them, or the only one; each is still to be looked up."""
    if isinstance(value, str):
        return (value,)
    try:
        return tuple(value)
    except TypeError:
        required = f"words, each one of {', '.join(valid)}"
        raise UsageError(wrong(field, required=required, found=shown(value), remedy="give a list of them")) from None


def _known(field: str, value: object, valid: Sequence[str]) -> None:
    is_text = isinstance(value, str)
    if is_text and value in valid:
        return
    near = completed(str(value), valid) if is_text else ()
    remedy = f"did you mean {near[0]}?" if near else "take one of these"
    message = wrong(field, required=f"one of {', '.join(valid)}", found=shown(value), remedy=remedy)
    raise UsageError(message, candidates=near or valid)


def _count(field: str, value: object, most: int) -> int:
    count = whole(value)
    if count is None or count < 1:
        raise UsageError(
            wrong(field, required="a whole number from 1", found=shown(value), remedy="give such a number")
        )
    if count > most:
        raise UsageError(wrong(field, required=f"at most {most}", found=str(count), remedy="give a smaller number"))
    return count
