"""A whole model's answer for people: one row a group of layers, then the cache of all of them in each mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from kvreg.cli import answers, render, sizing
from kvreg.cli.next_commands import again
from kvreg.core import notices
from kvreg.core.model_asking import GroupAnswer, ModelAnswer
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.selections import Selection

if TYPE_CHECKING:
    from kvreg.core.tuned_misses import Miss

_SPANS = 3
"""Spans of layer numbers that a row names; more do not help anybody."""


def show(answer: ModelAnswer, *, explain: bool = False, missed: Sequence[Mapping[str, Sequence[Miss]]] = ()) -> None:
    """Print an answer; a model, or a group of its layers, that no mode serves is its first line.

    `missed`: of each group, what was looked for among tuned entries in vain, by mode.
    """
    if not answer.served:
        render.line(f"refused: {_headline(answer)}")
    _header(answer)
    if answer.groups:
        render.line()
        if len(answer.modes) == 1:
            _one_mode(answer, answer.modes[0])
        else:
            _every_mode(answer)
        render.line()
        sizing.show(
            {total.mode: total.size for total in answer.totals},
            {total.mode: total.verdict for total in answer.totals},
            answer.groups[0].request.batch,
            answer.groups[0].request.context,
        )
    for text in _reasons(answer):
        render.line(text)
    for text in _notes(answer):
        render.line(f"note: {text}")
    if explain:
        for each, some in zip(answer.groups, missed or [{}] * len(answer.groups), strict=True):
            if each.results:
                render.line()
                render.line(f"layers {spans(each.group.layers)}:")
                answers.show_decisions(Selection(answer.resolution, each.request, each.results))
                answers.show_misses(some)
    render.line()
    render.line(_next_command(answer))


def spans(layers: Sequence[int]) -> str:
    """Return layer numbers in few words: `0-31`, `0-40 by 2`, `0-4, 6-10, 12-16, ...`, with their count."""
    count = f" ({len(layers)})"
    steps = {later - earlier for earlier, later in pairwise(layers)}
    if len(steps) == 1 and len(layers) > 2:
        (step,) = steps
        return f"{layers[0]}-{layers[-1]}" + ("" if step == 1 else f" by {step}") + count
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_SPANS]]
    return ", ".join(named) + (", ..." if len(runs) > _SPANS else "") + count


def _headline(answer: ModelAnswer) -> str:
    model = answer.model
    if model.refusal is not None:
        return f"{model.architecture}: {model.refusal}"
    if not answer.groups:
        return f"{model.architecture}: no layer keeps keys and values"
    lost = next(each for each in answer.groups if all(each.reason(mode) is not None for mode in answer.modes))
    reasons = {str(lost.reason(mode)): mode for mode in answer.modes}
    where = f"{model.architecture}, layers {spans(lost.group.layers)}"
    if len(reasons) == 1:
        asked = str(answer.modes[0]) if len(answer.modes) == 1 else "every mode"
        return f"{where}: {asked} on {answer.resolution.device.key}: {next(iter(reasons))}"
    words = ", ".join(f"{mode} ({reason.code})" for mode in answer.modes if (reason := lost.reason(mode)))
    return f"{where}: every mode on {answer.resolution.device.key}: {words}"


def _header(answer: ModelAnswer) -> None:
    device, model = answer.resolution.device, answer.model
    rule = answer.resolution.matched_by.replace("_", " ")
    render.line(f"{device.key}: {device.name} ({device.platform}, {device.arch}), matched by {rule}")
    longest = f", contexts to {model.max_context}" if model.max_context is not None else ""
    layers = f", {model.layers} layers{longest}" if model.layers else ""
    render.line(f"{model.folder}: {model.architecture} ({model.model_type}){layers}")
    if answer.groups:
        assumed = [name for name in answer.groups[0].request.assumed if name != "features"]
        if assumed:
            request = answer.groups[0].request
            shown = (f"{name.replace('_', ' ')} {answers.in_words(request, name)}" for name in assumed)
            render.line(f"assumed: {', '.join(shown)}")


def _shape(each: GroupAnswer) -> tuple[object, ...]:
    group = each.group
    sees = [word for word in each.request.features if word != "causal"]
    words = [f"window {group.window}" if word == "window" and group.window else word for word in sees]
    words = [f"softcap {group.softcap:g}" if word == "softcap" and group.softcap else word for word in words]
    attention = ", ".join(words) or "causal"
    return (spans(group.layers), group.head_size, f"{group.q_heads}/{group.kv_heads}", attention)


def _every_mode(answer: ModelAnswer) -> None:
    rows = []
    for each in answer.groups:
        served = [f"{result.mode} {result.tier}" for result in each.results if result.verdict == "selected"]
        lost: dict[str, list[str]] = {}
        for mode in answer.modes:
            reason = each.reason(mode)
            if reason is not None:
                lost.setdefault(answers.short(reason), []).append(str(mode))
        refused = "; ".join(
            text if len(modes) == len(answer.modes) else f"{', '.join(modes)}: {text}" for text, modes in lost.items()
        )
        rows.append((*_shape(each), ", ".join(served) or "-", refused or "-"))
    render.table(("layers", "head", "q/kv heads", "attention", "selected", "refused"), rows)


def _one_mode(answer: ModelAnswer, mode: Mode) -> None:
    rows = []
    for each in answer.groups:
        reason = each.reason(mode)
        if reason is not None:
            rows.append((*_shape(each), "refused", answers.short(reason), "-"))
        else:
            result = each.results[0]
            figures = answers.figures(result, each.request)
            rows.append((*_shape(each), result.tier, result.ops[Op.DECODE].variant, figures))
    columns = ("layers", "head", "q/kv heads", "attention", str(mode), "decode variant or reason", "worst e, speed")
    render.table(columns, rows)


def _reasons(answer: ModelAnswer) -> Iterable[str]:
    """Yield each reason once, with the groups and modes that it holds for."""
    found: dict[str, dict[str, list[Mode]]] = {}
    for each in answer.groups:
        for mode in answer.modes:
            reason = each.reason(mode)
            if reason is not None:
                found.setdefault(str(reason), {}).setdefault(spans(each.group.layers), []).append(mode)
    for text, places in found.items():
        of_modes: dict[tuple[Mode, ...], list[str]] = {}
        for layers, modes in places.items():
            of_modes.setdefault(tuple(modes), []).append(layers)
        for which, where in of_modes.items():
            named = "every mode" if len(which) == len(answer.modes) > 1 else ", ".join(which)
            whole = len(where) == len(answer.groups)
            yield f"{named}: {text}" if whole else f"layers {'; '.join(where)}: {named}: {text}"


def _notes(answer: ModelAnswer) -> Iterable[str]:
    model = answer.model
    yield from answer.resolution.notes
    yield from (note.text for note in model.notes)
    asked = answer.groups[0].request.context if answer.groups else 0
    if model.max_context is not None and asked > model.max_context:
        yield f"a context of {asked} is longer than the model's {model.max_context}"
    texts: dict[str, list[str]] = {}
    for each in answer.groups:
        for result in each.results:
            for note in result.notes:
                if not notices.said(note.text):
                    texts.setdefault(note.text, []).append(str(result.mode))
    for text, modes in texts.items():
        named = dict.fromkeys(modes)
        yield text if len(named) == len(answer.modes) else f"{', '.join(named)}: {text}"


def _next_command(answer: ModelAnswer) -> str:
    """Return the command that helps most: what validates a refused group, else one group in detail."""
    for each in answer.groups:
        for mode in answer.modes:
            reason = each.reason(mode)
            if not answer.served and reason is not None and "`" in reason.remedy:
                return reason.remedy.split("`")[1]
    if answer.served:
        return again(answer.groups[0].request)
    return f"kvreg coverage --platform {answer.resolution.device.platform}"
