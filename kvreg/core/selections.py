"""The answer to a request: one result a mode, the winner of each op, and every decision on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvreg.core.decisions import Decision
from kvreg.core.devices import Resolution
from kvreg.core.errors import Refused
from kvreg.core.evidence import Evidence, Tier
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Op, Request

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

ConfigSource = Literal["tuned", "bucket", "estimated", "default"]


@dataclass(frozen=True, slots=True)
class Note:
    """Something a user should know that changes no verdict."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The winner of one op."""

    variant: str
    """`name@version`."""
    launcher: str
    accuracy: str
    config: Mapping[str, int]
    config_source: ConfigSource
    evidence: Evidence
    file: str | None = None
    """The tuned file that the config came from."""
    default_config: Mapping[str, int] | None = None
    """The variant's own config, which `batch_invariant=True` uses; None where `config` is that already."""


@dataclass(frozen=True, slots=True)
class ModeResult:
    """What a request gets in one mode. Format and bytes are given even when it is refused."""

    mode: Mode
    verdict: Literal["selected", "refused"]
    layout: LayoutId
    format: Format
    bytes_per_token_head: int
    compression: float
    ops: Mapping[Op, Chosen] = field(default_factory=dict)
    tier: Tier | None = None
    """The weakest op's."""
    expectations: tuple[Touching, ...] = ()
    """Recorded exceptions of kvreg's tests that may hold here: of the winners, or of any variant when refused."""
    reason: str | None = None
    """One line when refused."""
    notes: tuple[Note, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """One answer of `select`: the resolved device, the request with what was assumed, a result a mode."""

    resolution: Resolution
    request: Request
    results: tuple[ModeResult, ...]

    @property
    def result(self) -> ModeResult:
        """The only mode's result; raises Refused when it was refused, ValueError when several modes were asked."""
        if len(self.results) != 1:
            raise ValueError("the selection answers several modes; ask select for one mode")
        (only,) = self.results
        if only.verdict == "refused":
            raise Refused(only.reason or f"{only.mode} is refused on {self.resolution.device.key}")
        return only
