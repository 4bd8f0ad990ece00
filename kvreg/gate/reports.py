"""What the gate says: failures that name the check and the place, and the worst numbers of every sequence."""

from __future__ import annotations

from dataclasses import dataclass

from kvreg.core.errors import GateFailed, wrong
from kvreg.core.modes import Mode
from kvreg.testing import Label

ATTENTION_CHECKS = ("shape", "dtype", "guard", "poison", "finite", "zero", "rel_error", "cosine", "lse", "repeat")
"""Checks of an attention result, in the order in which they are made."""
WRITE_CHECKS = ("row_bits", "step", "code", "scale", "zero_point", "untouched")
"""Checks of a write; `write_checks` says which of them a mode has."""
_ROW_CHECKS = {
    Mode.NONE: ("row_bits",),
    Mode.INT4_PER_TOKEN_HEAD: ("step", "scale", "zero_point"),
    Mode.INT8_PER_TOKEN_HEAD: ("step", "code", "scale"),
    Mode.FP8_PER_TOKEN_HEAD: ("step", "code", "scale"),
    Mode.FP8_PER_TENSOR: ("step", "code"),
}


def write_checks(mode: Mode) -> tuple[str, ...]:
    """Return the write checks that a mode has."""
    return (*_ROW_CHECKS[mode], "untouched")


@dataclass(frozen=True, slots=True)
class Failure:
    """One check that did not hold at one place."""

    check: str
    where: str
    required: str
    found: str

    def __str__(self) -> str:
        return f"{self.check} at {self.where}: required {self.required}, found {self.found}"


def place(index: int, label: Label | None) -> str:
    """Return how a message names a sequence."""
    if label is None:
        return f"sequence {index}"
    features = "" if label.features == "causal" else f"{label.features}, "
    return (
        f"sequence {index} ({label.kind}, {label.layout}, group {label.group}, {features}{label.input}, "
        f"context {label.context}, seed {label.seed})"
    )


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """The worst (token, query head) of one sequence; inf where a result is not finite."""

    index: int
    max_rel_error: float
    min_cosine: float
    max_lse_error: float | None = None
    """None where no lse was asked for."""
    label: Label | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The worst row of one sequence, K and V together."""

    index: int
    max_step_error: float
    """Steps between a dequantized value and its input (in int4 the fp64 rotation of it); 0 in mode `none`.

    A step is the row's scale, in fp8 the distance between neighbouring values there."""
    max_scale_error: float
    """Relative, against the ideal scale; inf where a row that is not finite has a scale that is."""
    max_zero_error: float
    """Codes, against the exact zero point; int4 only."""
    wrong_values: int
    """Stored values whose bits are not the input's; mode `none` only."""
    label: Label | None = None
    max_code_error: float = 0.0
    """Codes (int8) or places among the type's values (fp8) between what is stored and what the oracle stores."""


def _require(subject: str, failures: tuple[Failure, ...]) -> None:
    if failures:
        first = failures[0]
        more = f" ({len(failures) - 1} more failures)" if len(failures) > 1 else ""
        raise GateFailed(
            wrong(
                f"{subject}: {first.check} at {first.where}",
                required=first.required,
                found=first.found + more,
                remedy="do not use this kernel before it passes",
            )
        )


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result of one attention call under the gate."""

    failures: tuple[Failure, ...]
    rows: tuple[SequenceResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return not self.failures

    @property
    def checks(self) -> frozenset[str]:
        """Names of the checks that failed."""
        return frozenset(failure.check for failure in self.failures)

    def require(self, subject: str) -> None:
        """Raise GateFailed, naming `subject` and the first failure, unless every check held."""
        _require(subject, self.failures)


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The result of one write call under the gate."""

    failures: tuple[Failure, ...]
    rows: tuple[WriteResult, ...]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return not self.failures

    @property
    def checks(self) -> frozenset[str]:
        """Names of the checks that failed."""
        return frozenset(failure.check for failure in self.failures)

    def require(self, subject: str) -> None:
        """Raise GateFailed, naming `subject` and the first failure, unless every check held."""
        _require(subject, self.failures)


@dataclass(frozen=True, slots=True)
class RotationReport:
    """The result of comparing rotated rows with the fp64 rotation."""

    failures: tuple[Failure, ...]
    max_rel_error: float
    """Largest relative L2 error of a row."""

    @property
    def ok(self) -> bool:
        """Whether the error is within its limit."""
        return not self.failures
