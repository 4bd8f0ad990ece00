"""What became of a config in a bucket: one typed row, from its enumeration to its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from kvreg_tuning.worker import Outcome

Result = Literal["constraint", "compile", "resource", "timeout", "crash", "wrong", "slow", "ok"]
RESULTS: tuple[Result, ...] = get_args(Result)
"""constraint: pruned with a stated reason. compile: the compiler, or the first launch, raised. resource: the card has
too little of something for it. timeout, crash: the process was killed, or died. wrong: the gate refused it. slow:
right, and so much slower than the best that it was timed in few samples. ok: right and timed."""

MEANING: Mapping[Result, str] = {
    "constraint": "pruned",
    "compile": "compile error",
    "resource": "over a limit",
    "timeout": "hung",
    "crash": "crashed",
    "wrong": "wrong result",
    "slow": "slow",
    "ok": "ok",
}

OUT_OF_RESOURCES = ("OutOfResources", "OutOfMemoryError")
"""Names of the exceptions by which Triton and torch say that a config asks for more than the card has."""

RESOURCE_WORDS = ("out of resource", "too many resources", "out of memory")

Stage = Literal["compile", "gate", "bench"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One config in one bucket."""

    config: Mapping[str, int]
    bucket: str
    result: Result
    reason: str = ""
    """Why it is not ok: the compiler's words, the gate's first failures, the limit that was passed."""
    us: float | None = None
    """Median time of one call, microseconds."""
    spread: float | None = None
    samples: int = 0
    compile_s: float = 0.0
    gate_s: float = 0.0
    bench_s: float = 0.0
    gate: Mapping[str, Any] = field(default_factory=dict)
    """Of what passed: e, cosine, seeds, and a digest of the output's bits."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    launch: str = ""
    """What the config comes down to in this bucket; configs that share it are one launch."""

    @property
    def timed(self) -> bool:
        """Whether it is right and has a time."""
        return self.us is not None and self.result in ("ok", "slow")

    @property
    def seconds(self) -> float:
        """What the trial cost."""
        return self.compile_s + self.gate_s + self.bench_s


def failure(outcome: Outcome, stage: Stage) -> tuple[Result, str]:
    """Return the result and reason of a worker's task that gave no value."""
    if outcome.status == "timeout":
        return "timeout", f"{stage}: {outcome.error}"
    if outcome.status == "crash":
        return "crash", f"{stage}: {outcome.error}"
    words = outcome.error.lower()
    if outcome.error_type in OUT_OF_RESOURCES or any(each in words for each in RESOURCE_WORDS):
        return "resource", f"{stage}: {outcome.error}"
    if stage == "compile":
        return "compile", outcome.error
    return "crash", f"{stage}: {outcome.error}"
