"""What a Hugging Face config.json leaves unsaid: defaults and rules of each architecture that kvreg knows.

Source: the configuration classes of transformers 4.57 to 5.16 (`configuration_<model_type>.py`), whose defaults hold
for a field that a published config.json omits (Gemma 3 omits its head counts), and their attention modules for what
no field says (sinks, ALiBi, which layers are full).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Architecture:
    """What holds for every model of one `model_type` unless its config.json says otherwise."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a config.json may leave out."""
    full_every: int | None = None
    """Without `layer_types`, each n-th layer attends to everything and the others through the window."""
    window_from: bool = False
    """Only layers from `max_window_layers` on have the window, and only with `use_sliding_window`."""
    last_full: bool = False
    """The last layer attends to everything, wherever the pattern puts it."""
    sinks: bool = False
    """Each head has a learnt sink."""
    alibi: bool = False
    """Scores have ALiBi slopes, whatever the fields say."""
    images: str | None = None
    """How the tokens of an image attend: `ranges` each to all others of the image in every layer, `clamped` only in
    layers with a window, and within it. None: as text does."""


_SEVEN_B = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
"""Multimodal models leave a language part of this size out altogether (LLaVA 1.5)."""
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096}

KNOWN: Mapping[str, Architecture] = {
    "llama": Architecture({**_SEVEN_B}),
    "mistral": Architecture({**_SEVEN_B, "num_key_value_heads": 8, "sliding_window": 4096}),
    "mixtral": Architecture({"num_key_value_heads": 8}),
    "qwen2": Architecture({**_QWEN_WINDOW, "max_window_layers": 28}, window_from=True),
    "qwen2_moe": Architecture({**_QWEN_WINDOW, "max_window_layers": 28}, window_from=True),
    "qwen3": Architecture({**_QWEN_WINDOW, "head_dim": 128, "max_window_layers": 28}, window_from=True),
    "qwen3_moe": Architecture({**_QWEN_WINDOW, "num_key_value_heads": 4}, window_from=True),
    "phi3": Architecture(),
    "gemma": Architecture({"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256}),
    "gemma2": Architecture(
        {
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
        },
        full_every=2,
    ),
    "gemma3_text": Architecture(
        {
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
        },
        full_every=6,
        images="ranges",
    ),
    "gemma3n_text": Architecture(
        {
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "sliding_window": 512,
            "num_kv_shared_layers": 15,
        },
        full_every=5,
    ),
    "gemma4_text": Architecture(
        {
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
        },
        full_every=6,
        last_full=True,
        images="clamped",
    ),
    "gpt_oss": Architecture(
        {
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
        },
        full_every=2,
        sinks=True,
    ),
    "llama4_text": Architecture(
        {"num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
        full_every=4,
    ),
    "falcon": Architecture({"multi_query": True, "num_attention_heads": 71, "num_hidden_layers": 32}),
    "bloom": Architecture(alibi=True),
}
"""By the text part's `model_type`."""

ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "clip",
        "clip_text_model",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "longformer",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "roberta",
        "siglip",
        "vit",
        "xlm-roberta",
    }
)
"""Model types whose attention reads a whole input at once and keeps no cache."""

CACHELESS = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_delta_net", "moe", "mlp"})
"""Words of `layer_types` for layers that keep no keys and values."""
