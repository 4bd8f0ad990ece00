"""A Selection for people: one row a mode, then what stands behind it. The last line is the next useful command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvreg.cli import render, sizing
from kvreg.cli.next_commands import named_features, next_command
from kvreg.core import notices
from kvreg.core.decisions import Reason, leading
from kvreg.core.evidence import Evidence, Timing
from kvreg.core.index import Index
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Selection
from kvreg.core.standing import measured_at

if TYPE_CHECKING:
    from kvreg.core.sizing import CacheSize
    from kvreg.core.tuned_misses import Miss

_COLUMNS = (
    "mode",
    "verdict",
    "decode variant or reason",
    "layout, format",
    "bytes",
    "x smaller",
    "worst e, decode speed",
)


def show(
    answer: Selection,
    *,
    explain: bool = False,
    sizes: Mapping[Mode, CacheSize] | None = None,
    missed: Mapping[str, Sequence[Miss]] | None = None,
    index: Index | None = None,
) -> None:
    """Print an answer; a refusal of all that was asked is its first line.

    `sizes`: the cache that was asked about. `missed`: by mode, what was looked for among tuned entries in vain.
    `index`: what the answer was read from; None is the installed one.
    """
    refused = [result for result in answer.results if result.verdict == "refused"]
    if len(refused) == len(answer.results):
        render.line(f"refused: {headline(answer)}")
    _header(answer)
    render.line()
    render.table(_COLUMNS, [_row(result, answer.request) for result in answer.results])
    render.line()
    render.line("bytes: of one token of one KV head, K and V together; x smaller: against bf16")
    for result in answer.results:
        reason, block = leading(result.decisions), result.format.rotation_block
        illegal = result.verdict == "refused" and reason is not None and reason.code == "head_size"
        if block is not None and not illegal:
            render.line(f"{result.mode}: rotation block {block}, undo factor 1/{block}")
    if sizes is not None:
        request = answer.request
        render.line()
        sizing.show(sizes, {result.mode: result.verdict for result in answer.results}, request.batch, request.context)
    if explain:
        show_decisions(answer)
        show_misses(missed or {})
    else:
        _refusals(answer, refused)
    for text in _notes(answer):
        render.line(f"note: {text}")
    render.line()
    render.line(next_command(answer, explained=explain, index=index))


def headline(answer: Selection) -> str:
    """Return the one line of an answer that refuses everything."""
    key = answer.resolution.device.key
    if len(answer.results) == 1:
        return answer.results[0].reason or key
    reasons = {result.mode: leading(result.decisions) for result in answer.results}
    if len(set(reasons.values())) == 1:
        return f"every mode on {key}: {next(iter(reasons.values()))}"
    words = ", ".join(f"{mode} ({reason.code if reason else 'unknown'})" for mode, reason in reasons.items())
    return f"every mode on {key} for head size {answer.request.head_size}: {words}"


def _header(answer: Selection) -> None:
    device, request = answer.resolution.device, answer.request
    rule = answer.resolution.matched_by.replace("_", " ")
    render.line(f"{device.key}: {device.name} ({device.platform}, {device.arch}), matched by {rule}")
    render.line(f"head size {request.head_size}{_values(request, assumed=False)}")
    if request.assumed:
        render.line(f"assumed:{_values(request, assumed=True)}")


_SHOWN = {
    "q_heads": "{} query heads",
    "kv_heads": "{} KV heads",
    "page": "page {}",
    "dtype": "{}",
    "features": "{}",
    "batch": "batch {}",
    "context": "context {}",
    "layout": "layout {}",
    "accuracy": "accuracy {}",
}


def in_words(request: Request, name: str) -> str:
    """Return what a request holds as people read it; a layout that nobody named differs by mode."""
    held = getattr(request, name)
    return "by mode" if name == "layout" and held is None else render.text(held)


def _values(request: Request, *, assumed: bool) -> str:
    asked = named_features(request)
    features = [word for word in request.features if (word in asked) is not assumed]
    shown = [
        form.format(render.text(features) if name == "features" else in_words(request, name))
        for name, form in _SHOWN.items()
        if (bool(features) if name == "features" else (name in request.assumed) is assumed)
    ]
    if assumed:
        return " " + ", ".join(shown)
    return "".join(f", {each}" for each in shown)


def _row(result: ModeResult, request: Request) -> tuple[object, ...]:
    size = (result.bytes_per_token_head, f"{result.compression:.2f}")
    if result.verdict == "refused":
        reason = leading(result.decisions)
        return (result.mode, "refused", short(reason), _format(result), *size, "-")
    decode = result.ops[Op.DECODE]
    return (result.mode, result.tier, decode.variant, _format(result), *size, figures(result, request))


_SHORTEST = {
    "no_variant": "no variant yet",
    "evidence": "not validated",
    "expectation": "test switched off",
    "stale": "evidence is stale",
    "feature_evidence": "feature not validated",
}


def short(reason: Reason | None) -> str:
    """Return a reason in a few words, for a table."""
    if reason is None:
        return "-"
    if reason.code in _SHORTEST:
        return _SHORTEST[reason.code]
    return f"{reason.field}: found {reason.found}"


def _format(result: ModeResult) -> str:
    return f"{result.layout}, {stored(result.format)}"


def stored(form: Format) -> str:
    """Return a format in few words: uint8 of 2 codes, e4m3fn to 448, bfloat16."""
    if form.nibble_order is not None:
        return f"{form.storage} of 2 codes"
    if form.qmax is not None:
        return f"{form.fp8 or form.storage} to {form.qmax:g}"
    return form.storage


def figures(result: ModeResult, request: Request) -> str:
    """Return the worst error of a selected mode and its speed at the request's bucket."""
    attention = [result.ops[op].evidence for op in (Op.DECODE, Op.PREFILL)]
    errors = [each.max_rel_error for each in attention if each.max_rel_error is not None]
    worst = f"e {max(errors):.1e}" if errors else "e unknown"
    if any(each.numerics == "interpreter" for each in attention):
        worst += " interpreted"
    elif any(each.device != request.device for each in attention):
        worst += f" on {attention[0].device}"
    return f"{worst}, {_speed(measured_at(attention[0], Op.DECODE, request))}"


def _speed(point: Timing | None) -> str:
    if point is None:
        return "speed not measured"
    text = f"{point.us:.4g} us"
    if point.bf16_us is not None:
        text += f", bf16 {point.bf16_us:.4g}"
    return text


def _refusals(answer: Selection, refused: Sequence[ModeResult]) -> None:
    """Print each refusal's reason once, with the modes that it holds for."""
    modes: dict[str, list[str]] = {}
    for result in refused:
        reason = leading(result.decisions)
        modes.setdefault(str(reason), []).append(str(result.mode))
    if len(answer.results) == len(refused) and len(modes) == 1:
        return  # the first line has said it
    for text, names in modes.items():
        render.line(f"{', '.join(names)}: {text}")


def show_decisions(answer: Selection) -> None:
    """Print each op's winner with its evidence and launch parameters, then every decision."""
    for result in answer.results:
        if result.ops:
            render.line()
            render.table(
                ("op", "variant", "accuracy", "launch parameters", "evidence", "worst", "trace"),
                [_op_row(op, chosen) for op, chosen in result.ops.items()],
                title=f"{result.mode}: {result.tier}",
            )
            render.line()
            render.table(
                ("op", "registers", "spilled bytes", "shared bytes", "matrix instruction"),
                [_resource_row(op, chosen.evidence.resources) for op, chosen in result.ops.items()],
                title=f"{result.mode}: what a kernel takes at most",
            )
    for result in answer.results:
        render.line()
        render.table(
            ("op", "variant", "verdict", "field", "required", "found", "remedy"),
            list(_decision_rows(result)),
            title=f"{result.mode}: decisions",
        )
    render.line()


def show_misses(missed: Mapping[str, Sequence[Miss]]) -> None:
    """Print what no tuned entry serves: the look-up, the entries that came nearest, and the command that tunes it."""
    for mode, some in missed.items():
        render.table(
            ("op", "looked for", "differs in the nearest entries", "tune it with"),
            [(each.wanted.op, each.wanted, "; ".join(map(str, each.near)) or "none", each.command) for each in some],
            title=f"{mode}: nothing tuned",
        )
        render.line()


def _op_row(op: Op, chosen: Chosen) -> tuple[object, ...]:
    evidence = chosen.evidence
    axes = f"numerics {evidence.numerics}, build {evidence.build}, speed {evidence.speed}, {evidence.seeds} seeds"
    return (op, chosen.variant, chosen.accuracy, _config(chosen), axes, _worst(evidence), evidence.trace)


def _resource_row(op: Op, resources: Mapping[str, object]) -> tuple[object, ...]:
    names = ("registers", "spill_bytes", "shared_bytes", "matrix_instruction")
    return (op, *(resources.get(name) for name in names[:3]), resources.get(names[3]) or "none")


def _config(chosen: Chosen) -> str:
    words = " ".join(f"{name}={value}" for name, value in chosen.config.items())
    return f"{words} ({chosen.config_source})"


def _worst(evidence: Evidence) -> str:
    if evidence.max_rel_error is None:
        return "-"
    cosine = f", cosine {evidence.cosine:.6f}" if evidence.cosine is not None else ""
    return f"e {evidence.max_rel_error:.1e}{cosine}"


def _decision_rows(result: ModeResult) -> Iterable[tuple[object, ...]]:
    for decision in result.decisions:
        head = (decision.op, decision.variant or "-", decision.verdict)
        if not decision.reasons:
            yield (*head, "-", "-", "-", "-")
        for reason in decision.reasons:
            yield (*head, reason.field, reason.required, reason.found, reason.remedy)


def _notes(answer: Selection) -> Iterable[str]:
    """Return notes once each, with the modes of those that hold for some only."""
    modes: dict[str, list[str]] = {}
    for result in answer.results:
        for note in result.notes:
            if not notices.said(note.text):
                modes.setdefault(note.text, []).append(str(result.mode))
    yield from answer.resolution.notes
    for text, names in modes.items():
        yield text if len(answer.results) in (1, len(names)) else f"{', '.join(dict.fromkeys(names))}: {text}"
