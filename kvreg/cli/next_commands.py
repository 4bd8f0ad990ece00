"""The last line of an answer: the command that helps most after it. What it proposes was tried: select takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvreg.core import asking, environment
from kvreg.core.asking import MASKS
from kvreg.core.decisions import Reason, leading, reasons_of_nearest
from kvreg.core.index import Index
from kvreg.core.requests import Op, Request
from kvreg.core.select import select
from kvreg.core.selections import Selection

_NAMED = ("q_heads", "kv_heads", "page", "dtype", "features", "batch", "context", "layout", "accuracy")
"""Fields of a request that a command names where they were not assumed."""

_OF_A_RUN = ("expectation", "evidence", "stale", "feature_evidence", "config_evidence")
"""Reason codes that a run lifts; their remedy quotes it."""

_OPTION = re.compile(r"--(?P<name>head-size|q-heads|page|dtype|layout|mode|accuracy) (?P<value>[a-z0-9_.]+)")

_AWAY = (8, 16)
"""How far from the nearest legal head size another is tried."""


def next_command(answer: Selection, *, explained: bool, index: Index | None = None) -> str:
    """Return the command that helps most after this answer; `index` is what select reads, None the installed one."""
    request = answer.request
    selected = [result for result in answer.results if result.verdict == "selected"]
    if selected:
        if not explained:
            return f"{again(request)} --explain"
        evidence = selected[-1].ops[Op.DECODE].evidence
        return f"kvreg evidence show {evidence.trace}"
    for result in answer.results:
        reason = leading(result.decisions)
        if reason is not None and reason.code in _OF_A_RUN and "`" in reason.remedy:
            return reason.remedy.split("`")[1]
    if (changed := _taken(answer, index)) is not None:
        return again(request, **changed)
    return f"kvreg coverage --platform {answer.resolution.device.platform}"


def again(request: Request, **changed: object) -> str:
    """Return the command line of a request, with what was assumed left out and some values changed."""
    values: Mapping[str, object] = {
        "device": request.device,
        "mode": request.mode,
        "head_size": request.head_size,
        **{name: getattr(request, name) for name in _NAMED if name not in request.assumed},
        "features": named_features(request),
        **changed,
    }
    words = ["kvreg", "select"]
    for name, value in values.items():
        if name == "features" and isinstance(value, tuple):
            words += [word for feature in value for word in ("--feature", str(feature))]
        elif value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join(words)


def named_features(request: Request) -> tuple[str, ...]:
    """Return the features that were asked for: without the mask, where that was assumed."""
    if "features" not in request.assumed:
        return request.features
    return tuple(word for word in request.features if word not in MASKS)


def _taken(answer: Selection, index: Index | None) -> dict[str, Any] | None:
    """Return changes of a refused request with which select takes it, the least first; None where no try is taken."""
    changed = _changes(answer)
    sizes = [changed.pop("head_size", answer.request.head_size)]
    if sizes[0] != answer.request.head_size:
        sizes += [size for step in _AWAY for size in (sizes[0] + step, sizes[0] - step) if size > 0]
    # A mode that is named and has no kernel here gives way to the others.
    for mode in dict.fromkeys((changed.pop("mode", answer.request.mode), None)):
        for size in sizes:
            tried = {**changed, "mode": mode, "head_size": size}
            again = _asked(answer, tried, index)
            if not _is_taken(again):  # what was judged only now is mended too
                tried = {**_changes(again), **tried}
                again = _asked(answer, tried, index)
            if _is_taken(again):
                return tried
    return None


def _changes(answer: Selection) -> dict[str, Any]:
    """Return all that the remedies of an answer change in its request."""
    changed: dict[str, Any] = {}
    for result in answer.results:
        for reason in reasons_of_nearest(result.decisions):
            changed = {**_change(answer.request, reason), **changed}
    return changed


def _change(request: Request, reason: Reason) -> dict[str, Any]:
    """Return what a reason's remedy changes in a request."""
    if reason.code == "feature":
        return {"features": tuple(word for word in named_features(request) if word != reason.found)}
    if reason.code == "group":
        return {"q_heads": request.kv_heads * next(int(word) for word in reason.required.split() if word.isdigit())}
    option = _OPTION.search(reason.remedy)
    if option is None:
        return {}
    value = option["value"]
    return {option["name"].replace("-", "_"): int(value) if value.isdigit() else value}


def _asked(answer: Selection, changed: Mapping[str, Any], index: Index | None) -> Selection:
    """Return the answer to a request of an answer with some values changed."""
    request = answer.request
    named = {name: getattr(request, name) for name in _NAMED if name not in request.assumed}
    values = {**named, "features": named_features(request), **changed}
    mode, head_size = values.pop("mode"), values.pop("head_size")
    asked = asking.make_request(request.device, mode, head_size, **values)
    return select(asked, answer.resolution, environment.read(), index=index)


def _is_taken(answer: Selection) -> bool:
    return any(each.verdict == "selected" for each in answer.results)
