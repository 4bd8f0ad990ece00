"""One layer of a model at a time: its heads, what its queries see, and whether it keeps a cache of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvreg.core.architectures import CACHELESS, Architecture
from kvreg.core.config_fields import (
    CONTEXT,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MOST_LAYERS,
    QUERY_HEADS,
    SOFTCAP,
    Fields,
    shortened,
)
from kvreg.core.errors import BadFile, wrong

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_WORDS = {"attention": FULL, "global": FULL, "local": SLIDING, "full": FULL, "sliding": SLIDING}
"""Other words for the same kinds."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer asks for."""

    kind: str
    head_size: int
    q_heads: int
    kv_heads: int
    features: frozenset[str]
    window: int | None = None
    softcap: float | None = None
    shared: bool = False
    """Reads an earlier layer's cache."""
    clamped: bool = False
    """Image ranges are cut to the window."""

    @property
    def cacheless(self) -> bool:
        """Whether it keeps no keys and values at all."""
        return self.kind in CACHELESS

    def shape(self) -> Layer:
        """Return what two layers of one group share."""
        return replace(self, kind="", shared=False)


def layers_of(fields: Fields, architecture: Architecture, images: str | None) -> tuple[Layer, ...]:
    """Return every layer. `images` says how image tokens attend: ranges, clamped, or None for as text.

    Raises BadFile for fields that contradict each other.
    """
    count = fields.needed(*LAYERS, most=MOST_LAYERS)
    kinds = _kinds(fields, architecture, count)
    q_heads = fields.counts(count, *QUERY_HEADS)
    if q_heads is None:
        raise BadFile(
            wrong(f"{fields.path}", required=f"a field {QUERY_HEADS[0]}", found="none", remedy="is it a model's?")
        )
    kv_heads = _kv_heads(fields, count, q_heads)
    head_sizes = _head_sizes(fields, count, q_heads)
    shared = fields.whole("num_kv_shared_layers")
    window, softcap = _window(fields), fields.number(*SOFTCAP)
    layers = []
    for index, kind in enumerate(kinds):
        own = _overrides(fields, index, kind)
        layer = Layer(
            kind=kind,
            head_size=own.get("head_dim", head_sizes[index]),
            q_heads=q_heads[index],
            kv_heads=own.get("num_key_value_heads", kv_heads[index]),
            features=frozenset({"causal", *_features(fields, architecture, softcap)}),
            softcap=softcap,
            shared=index >= count - shared,
        )
        layers.append(_seen(layer, window, images))
    return tuple(layers)


def _kinds(fields: Fields, architecture: Architecture, count: int) -> tuple[str, ...]:
    """Return each layer's kind: as listed, by a pattern, or the window in all where there is one."""
    listed = fields.words("layer_types", count) or _blocks(fields, count)
    if listed is not None:
        kinds = [_WORDS.get(word, word) for word in listed]
        for word in kinds:
            if word not in {FULL, SLIDING, CHUNKED, *CACHELESS}:
                raise BadFile(
                    wrong(
                        f"{fields.path}, layer_types",
                        required=f"{FULL}, {SLIDING}, {CHUNKED} or one of {', '.join(sorted(CACHELESS))}",
                        found=shortened(word),
                        remedy="such layers are unknown; ask for the others with --head-size",
                    )
                )
        if SLIDING in kinds and _stated_window(fields) is None and fields.get("use_sliding_window") is not False:
            raise BadFile(
                wrong(
                    f"{fields.path}, sliding_window",
                    required=f"a width, as layer_types has {SLIDING}",
                    found="none",
                    remedy="is a field missing?",
                )
            )
        return tuple(kinds)
    local = CHUNKED if fields.get("attention_chunk_size") else SLIDING
    if local == SLIDING and _window(fields) is None:
        return (FULL,) * count
    if architecture.window_from:
        first = fields.whole("max_window_layers")
        return tuple(SLIDING if index >= first else FULL for index in range(count))
    every = fields.count("sliding_window_pattern", "no_rope_layer_interval") or architecture.full_every
    if every is None:
        return (local,) * count
    last = count - 1 if architecture.last_full else None
    return tuple(FULL if (index + 1) % every == 0 or index == last else local for index in range(count))


def _blocks(fields: Fields, count: int) -> tuple[str, ...] | None:
    """Return the kinds that a pattern of blocks gives, repeated over the layers."""
    blocks = fields.get("layers_block_type", "block_types")
    if isinstance(blocks, list) and blocks and all(isinstance(each, str) for each in blocks):
        return tuple(blocks[index % len(blocks)] for index in range(count))
    interval = fields.count("full_attention_interval")
    if interval is None:
        return None
    return tuple(FULL if (index + 1) % interval == 0 else "linear_attention" for index in range(count))


def _window(fields: Fields) -> int | None:
    """Return the window; None where there is none, it is switched off, or it holds the whole context anyway."""
    return None if idle_window(fields) else _stated_window(fields)


def _stated_window(fields: Fields) -> int | None:
    return None if fields.get("use_sliding_window") is False else fields.count("sliding_window")


def idle_window(fields: Fields) -> bool:
    """Return whether there is a window that holds every context of the model, and hence masks nothing."""
    window, most = _stated_window(fields), fields.count(*CONTEXT)
    return window is not None and most is not None and window >= most


def _kv_heads(fields: Fields, count: int, q_heads: Sequence[int]) -> tuple[int, ...]:
    """Return KV heads a layer; without a field every query head has its own, with `multi_query` all share one.

    Falcon's `num_kv_heads` counts only with its new decoder architecture, or without `multi_query`.
    """
    one = fields.flag("multi_query") and not fields.flag("new_decoder_architecture")
    if one:
        return (1,) * count
    return fields.counts(count, *KV_HEADS) or tuple(q_heads)


def _head_sizes(fields: Fields, count: int, q_heads: Sequence[int]) -> tuple[int, ...]:
    stated = fields.counts(count, *HEAD_SIZE)
    if stated is not None:
        return stated
    hidden = fields.needed(*HIDDEN)
    for heads in q_heads:
        if hidden % heads:
            raise BadFile(
                wrong(
                    f"{fields.path}, {HIDDEN[0]}",
                    required=f"a multiple of the {heads} heads, or a field {HEAD_SIZE[0]}",
                    found=str(hidden),
                    remedy="is a field missing?",
                )
            )
    return tuple(hidden // heads for heads in q_heads)


def _overrides(fields: Fields, index: int, kind: str) -> dict[str, int]:
    """Return what one layer has of its own: listed by index, or Gemma 4's layers that attend to everything."""
    listed = fields.part("per_layer_config")
    own = listed.part(str(index)) if listed is not None else None
    found: dict[str, int | None] = {}
    if own is not None:
        found = {name: own.count(name) for name in ("head_dim", "num_key_value_heads")}
    elif listed is None and kind == FULL:
        found["head_dim"] = fields.count("global_head_dim")
        if fields.flag("attention_k_eq_v"):
            found["num_key_value_heads"] = fields.count("num_global_key_value_heads")
    return {name: value for name, value in found.items() if value is not None}


def _features(fields: Fields, architecture: Architecture, softcap: float | None) -> set[str]:
    found = set()
    if softcap is not None:
        found.add("softcap")
    if architecture.sinks:
        found.add("sinks")
    if architecture.alibi or fields.flag("alibi"):
        found.add("alibi")
    wide = fields.count("v_head_dim")
    if wide is not None and wide != fields.get(*HEAD_SIZE):
        found.add("diff_v")
    return found


def _seen(layer: Layer, window: int | None, images: str | None) -> Layer:
    """Return the layer with the features that its kind and the model's images bring."""
    features = set(layer.features)
    slides = layer.kind == SLIDING and window is not None
    if slides:
        features.add("window")
    if layer.kind == CHUNKED:
        features.add("chunked_lookback")
    if images == "ranges" or (images == "clamped" and slides):
        features.add("prefix_ranges")
    return replace(
        layer,
        features=frozenset(features),
        window=window if slides else None,
        clamped=images == "clamped" and slides,
    )
