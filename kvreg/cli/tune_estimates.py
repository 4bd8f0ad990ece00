"""What `kvreg tune` answers for a card that is not here: estimates, named as such in every line that shows one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kvreg.cli import render
from kvreg.cli.tune_view import changed, outcomes
from kvreg.core.errors import NoImprovement, Refused, wrong
from kvreg.core.notices import one_line
from kvreg_tuning.subjects import text_of

if TYPE_CHECKING:
    from kvreg_tuning.choosing import Estimate
    from kvreg_tuning.estimating import Estimation

COLUMNS = (
    "variant and shape",
    "bucket",
    "default, estimated",
    "best, estimated",
    "gain",
    "bound by",
    "launch parameters",
)


def show(estimation: Estimation, workload: str, as_json: bool, require_improvement: bool) -> int:
    """Print the answer and return the exit code; raises Refused where nothing that compiled could run."""
    if as_json:
        render.document(document(estimation, workload))
    else:
        _text(estimation)
    if all(each.winner is None for each in estimation.estimates):
        raise Refused(_nothing(estimation))
    if require_improvement and not any(each.improvement > 0 for each in estimation.estimates):
        return NoImprovement.exit_code
    return 0


def document(estimation: Estimation, workload: str) -> dict[str, Any]:
    """Return the answer as JSON."""
    return {
        "schema": 1,
        "device": estimation.device.key,
        "workload": workload,
        "source": "estimated",
        "versions": {"triton": estimation.compiler.triton},
        "results": [_result(each) for each in estimation.estimates],
        "files": [str(path) for path in dict.fromkeys(merge.path for merge in estimation.merges)],
    }


def _result(estimate: Estimate) -> dict[str, Any]:
    winner = estimate.winner
    return {
        **estimate.subject.to_json(),
        "features": list(estimate.subject.features),
        "bucket": str(estimate.bucket),
        "default": _config(estimate, estimate.default.config, estimate.default.us),
        "winner": None if winner is None else _config(estimate, winner.config, winner.us),
        "gain": estimate.improvement,
        "resources": {} if winner is None else dict(winner.resources),
        "trials": dict(estimate.counts),
        "cut_off": estimate.cut_off,
    }


def _config(estimate: Estimate, config: Any, us: float | None) -> dict[str, Any]:
    cost = estimate.costs.get(text_of(config))
    shown: dict[str, Any] = {"config": dict(config), "estimated_us": us}
    if cost is not None:
        shown["parts_us"] = {"memory": cost.memory_us, "issue": cost.issue_us, "matrix": cost.matrix_us}
        shown |= {"bound_by": cost.bound, "resident": cost.resident, "tail": cost.tail, "splits": cost.splits}
    return shown


def _text(estimation: Estimation) -> None:
    render.line(f"{estimation.device.key}: estimated by a model of compiled kernels, nothing was run (docs/tuning.md)")
    render.line()
    render.table(COLUMNS, [_row(each) for each in estimation.estimates])
    render.line()
    counts = sum((Counter(dict(each.counts)) for each in estimation.estimates), Counter[str]())
    render.line(f"configs: {outcomes(counts)}")
    for each in estimation.estimates:
        if each.cut_off:
            render.line(f"{each.subject} {each.bucket}: the budget ended the compiling; the same command goes on")
    for merge in estimation.merges[-1:]:
        render.line(f"written to {merge.path}, source estimated")
    render.line()
    render.line(f"kvreg tuned list --device {estimation.device.key}")


def _row(estimate: Estimate) -> tuple[object, ...]:
    head = (estimate.subject, estimate.bucket)
    winner, base = estimate.winner, estimate.default
    shown = f"{base.us:.4g} us" if base.us is not None else base.result
    if winner is None or winner.us is None:
        return (*head, shown, "-", "-", "-", one_line(base.reason))
    cost = estimate.costs.get(text_of(winner.config))
    gain = f"{estimate.improvement:+.0%}" if winner is not base else "0"
    bound = cost.bound if cost is not None else "-"
    return (*head, shown, f"{winner.us:.4g} us", gain, bound, changed(winner.config, base.config))


def _nothing(estimation: Estimation) -> str:
    first = estimation.estimates[0]
    return wrong(
        f"estimate for {estimation.device.key}",
        required="a config whose compiled kernel can run",
        found=first.default.reason or "none",
        remedy="`kvreg validate --compile` shows every compilation",
    )
