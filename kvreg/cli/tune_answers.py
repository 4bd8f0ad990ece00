"""What `kvreg tune` answers when it is done: one row a bucket, and where the winners are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kvreg.cli import contribution, render
from kvreg.cli.tune_view import changed, outcomes
from kvreg.core.errors import GateFailed, NoImprovement
from kvreg.core.notices import one_line
from kvreg_tuning.subjects import limit_us, text_of

if TYPE_CHECKING:
    from kvreg_tuning.campaign import Campaign
    from kvreg_tuning.session import Verdict

COLUMNS = ("variant and shape", "bucket", "default", "best", "gain", "of limit", "launch parameters")


def show(campaign: Campaign, workload: str, as_json: bool, require_improvement: bool) -> int:
    """Print the answer and return the exit code."""
    if as_json:
        render.document(document(campaign, workload))
    else:
        _text(campaign)
    if any(verdict.default.result == "wrong" for verdict in campaign.verdicts):
        return GateFailed.exit_code
    if require_improvement and not any(verdict.improvement > 0 for verdict in campaign.verdicts):
        return NoImprovement.exit_code
    return 0


def document(campaign: Campaign, workload: str) -> dict[str, Any]:
    """Return the answer as JSON."""
    return {
        "schema": 1,
        "device": campaign.device.key,
        "effort": campaign.effort.name,
        "search": campaign.strategy,
        "workload": workload,
        "seed": campaign.seed,
        "source": campaign.source,
        "versions": dict(campaign.versions),
        "results": [_result(campaign, verdict) for verdict in campaign.verdicts],
        "repeated": [_repeat(each) for each in campaign.repeated],
        "journal": str(campaign.journal.path),
        "files": [str(path) for path in dict.fromkeys(merge.path for merge in campaign.merges)],
    }


def _result(campaign: Campaign, verdict: Verdict) -> dict[str, Any]:
    decision, winner = verdict.decision, verdict.winner
    limit = limit_us(verdict.subject, verdict.bucket, campaign.device, campaign.bandwidth)
    standing = decision.of(decision.winner) if decision is not None else None
    return {
        **verdict.subject.to_json(),
        "features": list(verdict.subject.features),
        "bucket": str(verdict.bucket),
        "default": {
            "config": dict(verdict.default.config),
            "result": verdict.default.result,
            "reason": verdict.default.reason,
            "us": verdict.default.us,
        },
        "winner": None
        if winner is None or standing is None
        else {
            "config": dict(winner.config),
            "us": standing.us,
            "spread": standing.spread,
            "gain": verdict.improvement,
            "noise": standing.over_default.noise,
            "fraction_of_limit": limit / standing.us if limit else None,
            "gate": dict(winner.gate),
        },
        "tie": decision.tie if decision is not None else None,
        "trials": dict(verdict.counts),
        "finalists": _finalists(verdict),
        "regret": _regret(campaign, verdict),
        "cut_off": verdict.cut_off,
        "method": verdict.method,
        "clock_mhz": verdict.clock_mhz,
    }


def _regret(campaign: Campaign, verdict: Verdict) -> float | None:
    """How much slower the winner of a replay was recorded than the best config; None where nothing is replayed."""
    if campaign.recorded is None or verdict.winner is None:
        return None
    return campaign.recorded.regret(verdict.subject, verdict.bucket, verdict.winner.config)


def _finalists(verdict: Verdict) -> list[dict[str, Any]]:
    if verdict.decision is None:
        return []
    return [
        {
            "config": dict(verdict.contestants[each.place].config),
            "us": each.us,
            "spread": each.spread,
            "gain": each.over_default.gain,
            "noise": each.over_default.noise,
        }
        for each in verdict.decision.standings
    ]


def _repeat(verdict: Verdict) -> dict[str, Any]:
    return {
        "subject": str(verdict.subject),
        "bucket": str(verdict.bucket),
        "config": None if verdict.winner is None else dict(verdict.winner.config),
        "tie": None if verdict.decision is None else verdict.decision.tie,
    }


def _text(campaign: Campaign) -> None:
    render.table(COLUMNS, [_row(campaign, verdict) for verdict in campaign.verdicts])
    render.line()
    counts = sum((Counter(verdict.counts) for verdict in campaign.verdicts), Counter[str]())
    render.line(f"trials: {outcomes(counts)}")
    for text in _remarks(campaign.verdicts):
        render.line(text)
    if campaign.recorded is not None:
        found = [value for each in campaign.verdicts if (value := _regret(campaign, each)) is not None]
        render.line(f"simulated; worst regret against the recording {max(found, default=0.0):.1%}")
    if campaign.repeated:
        _races(campaign)
    for merge in campaign.merges[-1:]:
        render.line(f"written to {merge.path}")
    render.line()
    render.line(f"kvreg tune report --device {campaign.device.key}")
    if campaign.merges and campaign.recorded is None:
        contribution.show(contribution.of_tuning(campaign))


def _row(campaign: Campaign, verdict: Verdict) -> tuple[object, ...]:
    head = (verdict.subject, verdict.bucket)
    if verdict.winner is None or verdict.decision is None:
        return (*head, verdict.default.result, "-", "-", "-", one_line(verdict.default.reason) or "not raced")
    standing = verdict.decision.of(verdict.decision.winner)
    base = next((each.us for each in verdict.decision.standings if each.place == 0), None)
    limit = limit_us(verdict.subject, verdict.bucket, campaign.device, campaign.bandwidth)
    gain = f"{verdict.improvement:+.1%}" if verdict.improvement else "tie" if verdict.decision.tie else "0"
    return (
        *head,
        "wrong" if base is None else f"{base:.4g} us",
        f"{standing.us:.4g} us",
        gain,
        f"{limit / standing.us:.0%}" if limit else "-",
        changed(verdict.winner.config, verdict.default.config),
    )


def _remarks(verdicts: Sequence[Verdict]) -> Iterable[str]:
    for verdict in verdicts:
        where = f"{verdict.subject} {verdict.bucket}"
        if verdict.default.result not in ("ok", "slow"):
            yield f"{where}: the default is {verdict.default.result}: {one_line(verdict.default.reason)}"
        if verdict.cut_off:
            yield f"{where}: the budget ended the search; the same command goes on"


def _races(campaign: Campaign) -> None:
    for verdict in campaign.verdicts:
        of = [each for each in campaign.repeated if (each.subject, each.bucket) == (verdict.subject, verdict.bucket)]
        if verdict.winner is None or not of:
            continue
        config = text_of(verdict.winner.config)
        same = 1 + sum(each.winner is not None and text_of(each.winner.config) == config for each in of)
        tie = verdict.decision is not None and verdict.decision.tie
        render.line(f"{verdict.subject} {verdict.bucket}: the same winner in {same} of {1 + len(of)} races"
                    f"{', a recorded tie' if tie else ''}")  # fmt: skip
