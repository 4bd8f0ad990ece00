"""The models whose decode step is timed: sizes alone, built in or from a Hugging Face config.json. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kvreg.core import config_fields, models
from kvreg.core.config_fields import HIDDEN, TEXT_PARTS, Fields
from kvreg.core.errors import BadFile, Refused, UsageError, wrong

INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")

WEIGHT_BYTES = 2
"""Of a weight: bf16."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """A decoder of equal layers: attention, then an MLP of gate, up and down."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    vocab: int
    q_heads: int
    kv_heads: int
    head_size: int

    @property
    def weights(self) -> int:
        """Weights that a step reads: of every layer, the last norm and the LM head."""
        attention = self.hidden * (2 * self.q_heads + 2 * self.kv_heads) * self.head_size
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocab * self.hidden

    def to_json(self) -> dict[str, Any]:
        """Return the model as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> StepModel:
        """Read what `to_json` gave."""
        return cls(**{each.name: record[each.name] for each in fields(cls)})


BUILT_IN = {
    "phi3-mini": StepModel("phi3-mini", 32, 3072, 8192, 32064, 32, 32, 96),
    "llama3-8b": StepModel("llama3-8b", 32, 4096, 14336, 128256, 32, 8, 128),
}
"""From the config.json of microsoft/Phi-3-mini-4k-instruct and meta-llama/Meta-Llama-3-8B."""

SMOKE = StepModel("smoke", 2, 64, 96, 128, 4, 2, 64)
"""Tries the path in a second on any machine; its times mean nothing."""


def model_of(text: str, context: int) -> StepModel:
    """Return a built-in model by its name, else that of a folder with a config.json.

    Raises UsageError for what is neither, BadFile as `kvreg.core.models.read_model` does, Refused for a model whose
    layers differ, mask more than causally at `context` tokens, or have experts.
    """
    if text in BUILT_IN:
        return BUILT_IN[text]
    folder = Path(text)
    if not folder.exists():
        raise UsageError(
            wrong(
                "--step",
                required=f"{', '.join(BUILT_IN)} or a folder with a config.json",
                found=repr(text),
                remedy="name one of them",
            ),
            candidates=tuple(BUILT_IN),
        )
    return _read(folder, context)


def _read(folder: Path, context: int) -> StepModel:
    model = models.read_model(folder, text_only=True)
    top = config_fields.read(folder)
    own = next((part for name in TEXT_PARTS if (part := top.part(name)) is not None), top)
    name = folder.name if folder.is_dir() else folder.parent.name
    if model.refusal is not None:
        raise Refused(f"bench: --step {name}: {model.refusal}")
    experts = own.count(*EXPERTS)
    if experts is not None and experts > 1:
        raise _refused(name, "an MLP that every token takes whole", f"{experts} experts")
    kinds = {(group.head_size, group.q_heads, group.kv_heads, _masks(group, context)): group for group in model.groups}
    cached = sum(group.cached for group in model.groups)
    if len(kinds) != 1 or cached != model.layers:
        raise _refused(name, "layers of one kind, each with a cache", f"{len(kinds)} kinds, {cached} caches")
    ((head_size, q_heads, kv_heads, masks),) = kinds
    if masks:
        raise _refused(name, f"causal attention alone at {context} tokens", ", ".join(masks))
    return StepModel(
        name=name or model.architecture,
        layers=model.layers,
        hidden=own.needed(*HIDDEN),
        intermediate=own.needed(*INTERMEDIATE),
        vocab=_vocab(top, own),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_size=head_size,
    )


def _masks(group: models.LayerGroup, context: int) -> tuple[str, ...]:
    """Return what attention does beside being causal; a window that holds the whole context does nothing."""
    idle = group.window is not None and group.window >= context
    return tuple(word for word in group.features if word != "causal" and not (word == "window" and idle))


def _vocab(top: Fields, own: Fields) -> int:
    found = own.count("vocab_size") or top.count("vocab_size")
    if found is None:
        raise BadFile(
            wrong(f"{own.path}", required="a field vocab_size", found="none", remedy="is it a language model's?")
        )
    return found


def _refused(name: str, required: str, found: str) -> Refused:
    return Refused(
        wrong(f"bench: --step {name}", required=required, found=found, remedy="time its kernels with `kvreg bench`")
    )
