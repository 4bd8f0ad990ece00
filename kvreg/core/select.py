"""Selection: for each mode the winner of write, decode and prefill, and a decision for every variant.

A mode is selected when each op has a winner and the winners store the same format. Order among accepted variants:
tier, accuracy class (the one asked for first), measured latency at the request's bucket, name; `kvreg.core.ranking`
says what stands in for a latency, and what decides where two are as good as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvreg.core import constraints, notices
from kvreg.core.backends import Backend
from kvreg.core.decisions import Decision, Reason, leading
from kvreg.core.devices import Device, Resolution
from kvreg.core.environment import Environment
from kvreg.core.errors import UsageError, shown, wrong
from kvreg.core.evidence import Evidence, Tier
from kvreg.core.formats import default_format, emulated_fp8, variant_format
from kvreg.core.index import Index
from kvreg.core.launchable import Launchable
from kvreg.core.layouts import LayoutId
from kvreg.core.lookup import Lookup
from kvreg.core.modes import Format, Mode
from kvreg.core.near import completed
from kvreg.core.ranking import Candidate, notes_on, ranked
from kvreg.core.requests import Op, Request
from kvreg.core.selections import Chosen, ModeResult, Note, Selection
from kvreg.core.standing import ALLOWABLE, known_exception, measured_at, stand, switched_off
from kvreg.core.tuned import WARNED, choose, is_slice
from kvreg.core.variants import Variant


def select(
    request: Request,
    resolution: Resolution,
    environment: Environment,
    allow: Sequence[str] = (),
    index: Index | None = None,
) -> Selection:
    """Return the answer to `request`; it reads nothing but the index, which is the installed one by default.

    What is wrong with a tuned file itself is a note, and a warning on stderr once a process.

    Raises UsageError for an `allow` that is no tier to allow.
    """
    for word in allow:
        _require_allowable(word)
    if index is None:
        index = Index.open(environment.home)
    modes = [request.mode] if request.mode is not None else list(Mode)
    asked = request if request.mode is None else request.of(request.mode)
    lookup = Lookup(index, resolution.device, asked.head_size)
    family, allowed = environment.backend, tuple(allow)
    results = tuple(_Desk(asked.of(mode), resolution.device, family, allowed, lookup).answer(mode) for mode in modes)
    for text in dict.fromkeys(note.text for each in results for note in each.notes if note.code in WARNED):
        notices.warn(text)
    return Selection(resolution, asked, results)


_NEEDS_NO_ALLOWANCE = {
    Tier.MEASURED: "measured evidence is taken anyway; leave it out",
    Tier.COMPILED: "compiled evidence is taken anyway; leave it out",
    Tier.DECLARED: "declared means without evidence, and is never taken; leave it out",
}


def _require_allowable(word: object) -> None:
    is_text = isinstance(word, str)
    if is_text and word in ALLOWABLE:
        return
    near = completed(str(word), Tier) if is_text else ()
    remedy = "leave it out"
    if near and near[0] in ALLOWABLE:
        remedy = f"did you mean {near[0]}?"
    elif near:
        remedy = _NEEDS_NO_ALLOWANCE[Tier(near[0])]
    message = wrong("allow", required=" or ".join(ALLOWABLE), found=shown(word), remedy=remedy)
    raise UsageError(message, candidates=tuple(ALLOWABLE))


@dataclass(frozen=True, slots=True)
class _Desk:
    """One request being answered for one mode; holds what its modes share."""

    request: Request
    """With the layout that the mode has where the user named none."""
    device: Device
    family: str | None
    allow: tuple[str, ...]
    lookup: Lookup

    @property
    def layout(self) -> LayoutId:
        return self.request.stored_layout

    def answer(self, mode: Mode) -> ModeResult:
        """Return the result of one mode."""
        accepted: list[Candidate] = []
        decisions: list[Decision] = []
        notes: list[Note] = []
        for op in Op:
            offered = [(v, b) for b, v in self._offered(mode) if v.op is op]
            if not offered:
                decisions.append(Decision(None, op, "rejected", tuple(self._no_variant(mode))))
            for variant, backend in sorted(offered, key=lambda pair: str(pair[0].id)):
                candidate, reasons = self._judge(variant, backend)
                if candidate is not None:
                    accepted.append(candidate)
                decisions.append(Decision(str(variant.id), op, "rejected" if reasons else "accepted", reasons))
        emulated = emulated_fp8(mode, self.device)
        if emulated is not None:
            text = (
                f"{emulated} is emulated on {self.device.arch}, which has no unit for it, and may be slower than bf16;"
                f" {Mode.INT8_PER_TOKEN_HEAD} takes as few bytes and needs none"
            )
            notes.append(Note("emulated_fp8", text))
        for backend in self.lookup.backends():
            notes += self.lookup.fault_notes(backend, mode)
        notes += self.lookup.tuned_faults
        ordered = ranked(accepted, self.request, self.device, self.lookup)
        winners = self._winners(ordered)
        if len(winners) == len(Op):
            notes += notes_on(ordered, winners, self.request.accuracy)
            return self._selected(mode, winners, notes, decisions)
        served = {decision.op for decision in decisions if decision.verdict == "accepted"}
        decisions += [Decision(None, op, "rejected", (_FORMAT,)) for op in Op if op in served and op not in winners]
        return ModeResult(
            mode,
            "refused",
            self.layout,
            self._format_offered(mode),
            *self._size(mode),
            expectations=self.lookup.expectations(str(variant.id) for _, variant in self._offered(mode)),
            reason=f"{mode} on {self.device.key}: {leading(decisions)}",
            notes=tuple(dict.fromkeys(notes)),
            decisions=tuple(decisions),
        )

    def _selected(
        self, mode: Mode, winners: Mapping[Op, Candidate], notes: list[Note], decisions: list[Decision]
    ) -> ModeResult:
        ops: dict[Op, Chosen] = {}
        for op, winner in winners.items():
            chosen, found = self._chosen(winner)
            ops[op] = chosen
            notes += found
        touching = self.lookup.expectations(chosen.variant for chosen in ops.values())
        notes += [known_exception(each) for each in touching]
        if is_slice(self.device) and all(chosen.config_source == "default" for chosen in ops.values()):
            key, parent = self.device.key, self.device.parent
            again = f"kvreg tune --device {key} --mode {mode} --head-size {self.request.head_size}"
            text = f"default launch parameters: a slice takes no tuned entry of the whole {parent} over; `{again}`"
            notes.append(Note("untuned", f"{text} tunes it"))
        return ModeResult(
            mode,
            "selected",
            self.layout,
            winners[Op.DECODE].format,
            *self._size(mode),
            ops=ops,
            expectations=touching,
            tier=max((chosen.evidence.tier for chosen in ops.values()), key=lambda tier: tier.rank),
            notes=tuple(dict.fromkeys(notes)),
            decisions=tuple(decisions),
        )

    def _size(self, mode: Mode) -> tuple[int, float]:
        """Return bytes of one token and KV head, and how many times smaller than bf16 that is."""
        head_size, dtype = self.request.head_size, self.request.dtype
        return mode.bytes_per_token_head(head_size, dtype), mode.compression(head_size, dtype)

    def _offered(self, mode: Mode) -> list[tuple[Backend, Variant]]:
        lookup = self.lookup
        return [(backend, v) for backend in lookup.backends() for v in lookup.variants(backend) if v.mode is mode]

    def _format_offered(self, mode: Mode) -> Format:
        """Return the format of a mode that is refused: a variant's own where there is one."""
        request = self.request
        for _, variant in self._offered(mode):
            return variant_format(variant, self.device, request.head_size, self.layout, request.dtype)
        return default_format(mode, self.device, request.head_size, self.layout, request.dtype)

    def _no_variant(self, mode: Mode) -> list[Reason]:
        return [
            *constraints.mode_failed(mode, self.request, self.device),
            Reason(
                "no_variant",
                "variant",
                f"a kernel for the mode on {self.device.platform}",
                "none in this version",
                f"`kvreg select --device {self.device.key} --head-size {self.request.head_size}` lists the others",
            ),
        ]

    def _judge(self, variant: Variant, backend: Backend) -> tuple[Candidate | None, tuple[Reason, ...]]:
        """Return a candidate, or every reason against the variant."""
        request, device = self.request, self.device
        reasons = constraints.failed(variant, request, device, self.family)
        kernels = self.lookup.kernels(backend)
        known = str(variant.id)
        if known in kernels.faults:
            reasons.append(
                Reason("evidence", "evidence", "a kernel hash", kernels.faults[known], "mend the kernel's source")
            )
        elif not reasons or all(reason.code in ("family", "accuracy") for reason in reasons):
            # Evidence says nothing about a shape that the variant cannot take.
            records = self.lookup.records(backend, variant.mode)
            standing = stand(variant, request, device, kernels.hashes.get(known), records, self.allow)
            reasons += standing.reasons
            reasons += switched_off(known, device, self.lookup.expectations([known]))
            if not reasons and standing.evidence is not None:
                stored = variant_format(variant, device, request.head_size, self.layout, request.dtype)
                point = measured_at(standing.evidence, variant.op, request)
                latency = point.us if point is not None else None
                return Candidate(variant, backend, standing.evidence, stored, latency, standing.notes), ()
        return None, tuple(constraints.by_order(reasons))

    def _winners(self, ordered: Sequence[Candidate]) -> dict[Op, Candidate]:
        """Return the first candidate of each op such that all store one format; incomplete where none agree."""
        best: dict[Op, Candidate] = {}
        for stored in dict.fromkeys(candidate.format for candidate in ordered):
            winners: dict[Op, Candidate] = {}
            for candidate in ordered:
                if candidate.format == stored:
                    winners.setdefault(candidate.variant.op, candidate)
            if len(winners) > len(best):
                best = winners
        return {op: best[op] for op in Op if op in best}

    def _chosen(self, winner: Candidate) -> tuple[Chosen, list[Note]]:
        variant, device, request = winner.variant, self.device, self.request
        notes = [*winner.notes, *self._version_notes(winner.evidence)]
        shelves = self.lookup.shelves(winner.backend, variant.mode, variant.op, request.group)
        offered = Launchable(winner.backend, variant, device, request)
        choice = choose(offered, winner.evidence.kernel_hash, shelves, self.lookup.versions)
        notes += choice.notes
        accuracy = self._accuracy(winner)
        chosen = Chosen(
            variant=str(variant.id),
            launcher=variant.launcher,
            accuracy=accuracy,
            config=choice.config,
            config_source=choice.source,
            evidence=winner.evidence,
            file=choice.file,
            default_config=None if choice.source == "default" else offered.default,
        )
        return chosen, notes

    def _version_notes(self, evidence: Evidence) -> Iterable[Note]:
        for name in ("triton", "torch"):
            then, here = evidence.versions.get(name), self.lookup.versions.get(name)
            if then and here and _release(then) != _release(here):
                yield Note(f"other_{name}", f"validated with {name} {then}, here is {here}")

    def _accuracy(self, winner: Candidate) -> str:
        """Return the accuracy class; of a variant that no card has measured, whose class it is."""
        if winner.evidence.tier is not Tier.COMPILED:
            return winner.variant.accuracy
        variant, kernel_hash = winner.variant, winner.evidence.kernel_hash
        record = self.lookup.measured_elsewhere(winner.backend, variant.mode, variant.op, kernel_hash)
        if record is not None:
            return f"{record.evidence.accuracy} as on {record.evidence.device}"
        return "unmeasured"


_FORMAT = Reason(
    "format",
    "format",
    "write, decode and prefill that store one format",
    "accepted variants of different formats",
    "see them with --explain",
)


def _release(version: str) -> tuple[str, ...]:
    """Return major and minor: patch releases and local builds change no kernel's meaning."""
    return tuple(version.split("+")[0].split(".")[:2])
