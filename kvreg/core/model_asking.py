"""A whole model's answer: each group of layers asked for as a request of its own, and the cache of all of them sized.

answer = ask_model("h200", Path("gemma-3-4b"), "int4_per_token_head", batch=8, context=32768)
answer.groups[0].results, answer.totals[0].size
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kvreg.core import asking, resolve
from kvreg.core.decisions import Reason, leading
from kvreg.core.devices import Device, Resolution
from kvreg.core.environment import Environment, read
from kvreg.core.index import Index
from kvreg.core.layouts import LayoutId, default
from kvreg.core.models import LayerGroup, Model, read_model
from kvreg.core.modes import Mode
from kvreg.core.requests import Accuracy, Request
from kvreg.core.select import select
from kvreg.core.selections import ModeResult
from kvreg.core.sizing import CacheSize, Part, cache_size


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What one group of layers gets in each mode that was asked for."""

    group: LayerGroup
    request: Request
    results: tuple[ModeResult, ...]
    """Empty where the group is refused before the registry is asked."""

    def reason(self, mode: Mode) -> Reason | None:
        """Return why the group is refused in a mode, None where it is selected."""
        if self.group.refusal is not None:
            return self.group.refusal
        result = next(each for each in self.results if each.mode is mode)
        reason = leading(result.decisions) if result.verdict == "refused" else None
        if reason is not None and reason.code == "head_size":
            return replace(reason, remedy="it is the model's own, so take another mode or device")
        return reason


@dataclass(frozen=True, slots=True)
class Total:
    """One mode for the whole model."""

    mode: Mode
    verdict: Literal["selected", "refused"]
    """Selected where every group is."""
    served: int
    """Layers whose group is selected."""
    size: CacheSize


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Everything that `kvreg select --model` prints."""

    resolution: Resolution
    model: Model
    modes: tuple[Mode, ...]
    groups: tuple[GroupAnswer, ...]
    totals: tuple[Total, ...]
    """One for each mode; empty for a model that is refused as a whole."""

    @property
    def served(self) -> bool:
        """Whether each group is selected in some mode that was asked for."""
        return bool(self.groups) and all(any(each.reason(mode) is None for mode in self.modes) for each in self.groups)


def ask_model(
    device: str | None,
    folder: Path,
    mode: Mode | str | None = None,
    *,
    text_only: bool = False,
    page: int | None = None,
    dtype: str | None = None,
    features: Sequence[str] | None = None,
    batch: int | None = None,
    context: int | None = None,
    layout: LayoutId | str | None = None,
    accuracy: Accuracy | None = None,
    allow: Sequence[str] = (),
    weights_bytes: int = 0,
) -> ModelAnswer:
    """Return which variants serve each group of a model's layers, and how large its cache is in each mode.

    Heads, head sizes, features and the dtype come from `folder`/config.json; `dtype` overrides it and `features` are
    asked for beside those that it shows. Everything else is as in `kvreg.core.asking.ask`, which also says what is
    raised; BadFile for a config.json that cannot be read.
    """
    environment = read()
    resolution = resolve.resolve(device) if device is not None else resolve.default_device(environment.device)
    return answer_model(
        read_model(folder, text_only=text_only),
        resolution,
        environment,
        mode,
        features=features,
        allow=allow,
        weights_bytes=weights_bytes,
        page=page,
        dtype=dtype,
        batch=batch,
        context=context,
        layout=layout,
        accuracy=accuracy,
    )


def answer_model(
    model: Model,
    resolution: Resolution,
    environment: Environment,
    mode: Mode | str | None = None,
    *,
    features: Sequence[str] | None = None,
    allow: Sequence[str] = (),
    weights_bytes: int = 0,
    index: Index | None = None,
    **asked: Any,
) -> ModelAnswer:
    """Return the answer for a model that was read and a device that was found; `asked` is make_request's."""
    wanted = asking.parse_mode(mode)
    modes = tuple(Mode) if wanted is None else (wanted,)
    answers = []
    for group in model.groups:
        request = _request(model, group, resolution.device, wanted, tuple(features or ()), asked)
        results = () if group.refusal else select(request, resolution, environment, allow, index).results
        answers.append(GroupAnswer(group, request, results))
    totals = tuple(_total(each, model, answers, resolution.device, weights_bytes) for each in modes) if answers else ()
    return ModelAnswer(resolution, model, modes, tuple(answers), totals)


def _request(
    model: Model, group: LayerGroup, device: Device, mode: Mode | None, named: tuple[str, ...], asked: dict[str, Any]
) -> Request:
    """Return a group's request; what was named on top comes beside what the model needs."""
    masked = any(word in asking.MASKS for word in named)  # a mask that is named replaces the model's causal one
    words = (*named, *(word for word in group.features if not (masked and word in asking.MASKS)))
    return asking.make_request(
        device.key,
        mode,
        group.head_size,
        q_heads=group.q_heads,
        kv_heads=group.kv_heads,
        features=words,
        **{**asked, "dtype": asked.get("dtype") or model.dtype},
    )


def parts_of(model: Model) -> tuple[Part, ...]:
    """Return what the model's cache is made of."""
    return tuple(Part(each.cached, each.head_size, each.kv_heads, each.window) for each in model.groups)


def _total(mode: Mode, model: Model, answers: Sequence[GroupAnswer], device: Device, weights_bytes: int) -> Total:
    asked = answers[0].request
    served = sum(len(each.group.layers) for each in answers if each.reason(mode) is None)
    size = cache_size(
        parts_of(model),
        mode,
        device,
        batch=asked.batch,
        context=asked.context,
        page=asked.page,
        layout=asked.layout or default(mode),
        dtype=asked.dtype,
        weights_bytes=weights_bytes,
    )
    if model.max_context is not None and size.memory_bytes is not None:
        most = model.max_context
        size = replace(size, context_fit=most if size.context_fit is None else min(size.context_fit, most))
    whole = all(each.reason(mode) is None for each in answers)
    return Total(mode, "selected" if whole else "refused", served, size)
