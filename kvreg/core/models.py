"""A model's attention, from its Hugging Face config.json: which of its layers ask the registry for the same thing.

    model = read_model(Path("Llama-3.1-8B"))
    model.groups[0].head_size, model.groups[0].features

Models of several modalities are answered for their language model. What keeps no cache of keys and values a head (an
encoder, multi-head latent attention) is refused with its reason. An architecture that kvreg does not know is read by
its fields, with a note: a feature that no field shows is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreg.core import config_fields
from kvreg.core.architectures import ENCODERS, KNOWN, Architecture
from kvreg.core.config_fields import CONTEXT, TEXT_PARTS, Fields, shortened
from kvreg.core.decisions import Reason
from kvreg.core.layers import Layer, idle_window, layers_of
from kvreg.core.requests import FEATURES
from kvreg.core.selections import Note

_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that ask the registry for the same thing."""

    layers: tuple[int, ...]
    """Their indices, from 0."""
    cached: int
    """How many of them keep a cache of their own; the others read an earlier layer's."""
    head_size: int
    q_heads: int
    kv_heads: int
    features: tuple[str, ...]
    window: int | None = None
    softcap: float | None = None
    refusal: Reason | None = None
    """Why no kernel of any mode can serve them, before the registry is asked."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a config.json says of a model's attention."""

    folder: Path
    architecture: str
    """First of `architectures`, else the model type."""
    model_type: str
    known: bool
    """Whether kvreg has rules for the architecture, beyond its fields."""
    dtype: str | None
    """bf16 or fp16; None where the file says another or none."""
    max_context: int | None
    layers: int
    groups: tuple[LayerGroup, ...]
    refusal: Reason | None = None
    """Why the model as a whole is refused; it has no groups then."""
    notes: tuple[Note, ...] = ()


def read_model(folder: Path, *, text_only: bool = False) -> Model:
    """Return the model of a folder with a config.json, or of such a file.

    `text_only` leaves out what only images need. Raises BadFile for a file that is missing, is no JSON object, lacks
    a field that nothing else implies, or has a value of another kind than the field's.
    """
    top = config_fields.read(folder)
    text = next((part for name in TEXT_PARTS if (part := top.part(name)) is not None), top)
    kind = _kind(top, text)
    known = KNOWN.get(kind)
    architecture = known or Architecture()
    fields = text.with_defaults(architecture.defaults)
    named = next(iter(top.listed("architectures")), kind)
    dtype = text.get("dtype", "torch_dtype") or top.get("dtype", "torch_dtype")
    refusal = _refusal(top, fields, kind, named)
    layers = () if refusal else layers_of(fields, architecture, _images(top, architecture, text_only))
    return Model(
        folder=folder,
        architecture=named,
        model_type=kind,
        known=known is not None,
        dtype=_DTYPES.get(str(dtype)),
        max_context=fields.count(*CONTEXT) if refusal is None else None,
        layers=len(layers),
        groups=_groups(layers),
        refusal=refusal,
        notes=tuple(_notes(fields, layers, known is not None, named, dtype)) if refusal is None else (),
    )


def _kind(top: Fields, text: Fields) -> str:
    """Return the model type whose rules hold: the text part's own, or the one that its parent's name implies."""
    own = text.text("model_type")
    if own is not None and (text is not top or own in KNOWN or f"{own}_text" not in KNOWN):
        return own
    whole = top.text("model_type") or "unknown"
    return f"{whole}_text" if f"{whole}_text" in KNOWN else whole


def _images(top: Fields, architecture: Architecture, text_only: bool) -> str | None:
    """Return how image tokens attend in this model; None where it sees none or they attend as text."""
    if text_only or architecture.images is None or top.part("vision_config") is None:
        return None
    text = next((part for name in TEXT_PARTS if (part := top.part(name)) is not None), top)
    if architecture.images == "clamped" and text.get("use_bidirectional_attention") != "vision":
        return None
    return architecture.images


def _refusal(top: Fields, fields: Fields, kind: str, named: str) -> Reason | None:
    """Return why a model has no cache that kvreg could hold."""
    rank = fields.count("kv_lora_rank")
    if rank is not None:
        return Reason(
            "mla",
            "attention",
            "keys and values stored for each KV head",
            f"multi-head latent attention (kv_lora_rank {rank}), which stores one compressed row for all heads",
            "serve it with the engine's own MLA backend; kvreg has no mode for it",
        )
    bidirectional = fields.get("use_bidirectional_attention") in (True, "all") or fields.get("is_causal") is False
    encoder = kind in ENCODERS and not fields.flag("is_decoder")
    if top.flag("is_encoder_decoder") or encoder or bidirectional or named.endswith("ForMaskedLM"):
        found = "an encoder-decoder" if top.flag("is_encoder_decoder") else "an encoder, whose tokens attend both ways"
        return Reason(
            "encoder",
            "attention",
            "a decoder, whose keys and values stay in a cache",
            f"{found} ({named})",
            "quantize its weights instead; there is no KV cache to quantize",
        )
    return None


def _groups(layers: tuple[Layer, ...]) -> tuple[LayerGroup, ...]:
    found: dict[Layer, list[int]] = {}
    cached: dict[Layer, int] = {}
    for index, layer in enumerate(layers):
        if layer.cacheless:
            continue
        shape = layer.shape()
        found.setdefault(shape, []).append(index)
        cached[shape] = cached.get(shape, 0) + (not layer.shared)
    return tuple(
        LayerGroup(
            layers=tuple(indices),
            cached=cached[shape],
            head_size=shape.head_size,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            features=tuple(word for word in FEATURES if word in shape.features),
            window=shape.window,
            softcap=shape.softcap,
            refusal=_clamped(shape) if shape.clamped else None,
        )
        for shape, indices in found.items()
    )


def _clamped(shape: Layer) -> Reason:
    """Refuse ranges that a window cuts: kvreg's prefix ranges hold whatever the window, and would see too much."""
    return Reason(
        "feature",
        "feature",
        f"image ranges cut to the window of {shape.window}",
        "prefix_ranges, which a window does not cut",
        "add --text-only; an image of no more tokens than the window needs no cut and is served by "
        "--feature window --feature prefix_ranges",
    )


def _notes(fields: Fields, layers: tuple[Layer, ...], known: bool, named: str, dtype: object) -> Iterator[Note]:
    if not known:
        yield Note(
            "unknown_architecture",
            f"{named} is no architecture that kvreg knows: read by its fields; what no field shows (sinks, ALiBi, "
            "prefix ranges, layers without attention) is not asked for, so name it with --feature",
        )
    without = [index for index, layer in enumerate(layers) if layer.cacheless]
    if without:
        kinds = ", ".join(dict.fromkeys(layers[index].kind for index in without))
        yield Note("no_cache", f"{len(without)} of {len(layers)} layers keep no keys and values ({kinds})")
    shared = sum(layer.shared for layer in layers)
    if shared:
        yield Note(
            "shared_cache",
            f"the last {shared} layers read the caches of earlier ones (num_kv_shared_layers) and take no memory",
        )
    if idle_window(fields):
        window, most = fields.count("sliding_window"), fields.count(*CONTEXT)
        yield Note("idle_window", f"the window of {window} holds the whole context of {most}: no window is asked for")
    if dtype is not None and str(dtype) not in _DTYPES:
        stored = dtype if isinstance(dtype, str) and len(dtype) < 40 else shortened(dtype)
        yield Note("dtype", f"the weights are stored as {stored}; bf16 is assumed unless --dtype says otherwise")
