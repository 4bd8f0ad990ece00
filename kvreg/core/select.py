"""Selection: for each mode the winner of write, decode and prefill, and a decision for every variant.

A mode is selected when each op has a winner and the winners store the same format. Order among accepted variants:
tier, accuracy class (the one asked for first), measured latency at the request's bucket, name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvreg.core import constraints, installed, layouts
from kvreg.core.backends import Backend
from kvreg.core.buckets import bucket, stand_in
from kvreg.core.decisions import Decision, Reason, leading
from kvreg.core.devices import Device, Resolution
from kvreg.core.environment import Environment
from kvreg.core.errors import UsageError, wrong
from kvreg.core.evidence import Evidence, Tier, Timing
from kvreg.core.formats import default_format, variant_format
from kvreg.core.index import Index, Kernels, Recorded
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Accuracy, Op, Request
from kvreg.core.selections import Chosen, ModeResult, Note, Selection
from kvreg.core.standing import ALLOWABLE, stand
from kvreg.core.tuned import SOFT, choose, is_slice
from kvreg.core.variants import Variant


def select(
    request: Request,
    resolution: Resolution,
    environment: Environment,
    allow: Sequence[str] = (),
    index: Index | None = None,
) -> Selection:
    """Return the answer to `request`; pure but for the index, which is the installed one by default.

    Raises UsageError for an `allow` that is no tier to allow.
    """
    for word in allow:
        if word not in ALLOWABLE:
            message = wrong("allow", required=" or ".join(ALLOWABLE), found=repr(word), remedy="leave it out")
            raise UsageError(message, candidates=tuple(ALLOWABLE))
    if index is None:
        index = Index.open(environment.home)
    asked = replace(request, layout=request.layout or layouts.DEFAULT)
    modes = [asked.mode] if asked.mode is not None else list(Mode)
    desk = _Desk(asked, resolution.device, environment.backend, tuple(allow), index)
    return Selection(resolution, asked, tuple(desk.answer(mode) for mode in modes))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An accepted variant."""

    variant: Variant
    backend: Backend
    evidence: Evidence
    format: Format
    latency_us: float | None
    notes: tuple[Note, ...]

    def order(self, accuracy: Accuracy) -> tuple[int, bool, float, str]:
        latency = self.latency_us if self.latency_us is not None else float("inf")
        return self.evidence.tier.rank, self.variant.accuracy != accuracy, latency, str(self.variant.id)


@dataclass(slots=True)
class _Desk:
    """One request being answered; holds what its modes share."""

    request: Request
    device: Device
    family: str | None
    allow: tuple[str, ...]
    index: Index
    _kernels: dict[str, Kernels] = field(default_factory=dict)
    _versions: dict[str, str] | None = None
    _relatives: frozenset[str] | None = None

    @property
    def layout(self) -> LayoutId:
        return self.request.layout or layouts.DEFAULT

    def answer(self, mode: Mode) -> ModeResult:
        """Return the result of one mode."""
        accepted: list[_Candidate] = []
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
        for backend in self._backends():
            notes += self._fault_notes(backend, mode)
        winners = self._winners(accepted)
        if len(winners) == len(Op):
            return self._selected(mode, winners, notes, decisions)
        if not any(decision.reasons for decision in decisions if decision.op not in winners):
            decisions += [Decision(None, op, "rejected", (_FORMAT,)) for op in Op if op not in winners]
        return ModeResult(
            mode,
            "refused",
            self.layout,
            self._format_offered(mode),
            *self._size(mode),
            reason=f"{mode} on {self.device.key}: {leading(decisions)}",
            notes=tuple(dict.fromkeys(notes)),
            decisions=tuple(decisions),
        )

    def _selected(
        self, mode: Mode, winners: Mapping[Op, _Candidate], notes: list[Note], decisions: list[Decision]
    ) -> ModeResult:
        ops: dict[Op, Chosen] = {}
        for op, winner in winners.items():
            chosen, found = self._chosen(winner)
            ops[op] = chosen
            notes += found
        if is_slice(self.device) and all(chosen.config_source == "default" for chosen in ops.values()):
            parent = self.device.parent
            notes.append(
                Note("untuned", f"default launch parameters: a slice takes no tuned entry of the whole {parent} over")
            )
        return ModeResult(
            mode,
            "selected",
            self.layout,
            winners[Op.DECODE].format,
            *self._size(mode),
            ops=ops,
            tier=max((chosen.evidence.tier for chosen in ops.values()), key=lambda tier: tier.rank),
            notes=tuple(dict.fromkeys(notes)),
            decisions=tuple(decisions),
        )

    def _size(self, mode: Mode) -> tuple[int, float]:
        """Return bytes of one token and KV head, and how many times smaller than bf16 that is."""
        head_size, dtype = self.request.head_size, self.request.dtype
        return mode.bytes_per_token_head(head_size, dtype), mode.compression(head_size, dtype)

    def _backends(self) -> list[Backend]:
        return [each for each in self.index.backends if each.platform == self.device.platform]

    def _offered(self, mode: Mode) -> list[tuple[Backend, Variant]]:
        return [(backend, v) for backend in self._backends() for v in backend.variants() if v.mode is mode]

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

    def _judge(self, variant: Variant, backend: Backend) -> tuple[_Candidate | None, tuple[Reason, ...]]:
        """Return a candidate, or every reason against the variant."""
        request, device = self.request, self.device
        reasons = constraints.failed(variant, request, device, self.family)
        kernels = self._hashes(backend)
        known = str(variant.id)
        if known in kernels.faults:
            reasons.append(
                Reason("evidence", "evidence", "a kernel hash", kernels.faults[known], "mend the kernel's source")
            )
        elif not reasons or all(reason.code in ("family", "accuracy") for reason in reasons):
            # Evidence says nothing about a shape that the variant cannot take.
            records = self._records(backend, variant.mode)
            standing = stand(variant, request, device, kernels.hashes.get(known), records, self.allow)
            reasons += standing.reasons
            if not reasons and standing.evidence is not None:
                stored = variant_format(variant, device, request.head_size, self.layout, request.dtype)
                point = measured_at(standing.evidence, variant.op, request)
                latency = point.us if point is not None else None
                return _Candidate(variant, backend, standing.evidence, stored, latency, standing.notes), ()
        return None, tuple(constraints.by_order(reasons))

    def _winners(self, accepted: Sequence[_Candidate]) -> dict[Op, _Candidate]:
        """Return the best candidate of each op such that all store one format; incomplete where none agree."""
        ordered = sorted(accepted, key=lambda candidate: candidate.order(self.request.accuracy))
        best: dict[Op, _Candidate] = {}
        for stored in dict.fromkeys(candidate.format for candidate in ordered):
            winners: dict[Op, _Candidate] = {}
            for candidate in ordered:
                if candidate.format == stored:
                    winners.setdefault(candidate.variant.op, candidate)
            if len(winners) > len(best):
                best = winners
        return {op: best[op] for op in Op if op in best}

    def _chosen(self, winner: _Candidate) -> tuple[Chosen, list[Note]]:
        variant, device, request = winner.variant, self.device, self.request
        notes = [*winner.notes, *self._version_notes(winner.evidence)]
        shelves, faults = self.index.tuned(winner.backend, device.key, variant.mode, request.head_size)
        if device.parent is not None:
            inherited, more = self.index.tuned(winner.backend, device.parent, variant.mode, request.head_size)
            shelves += inherited
            faults += more
        notes += [Note("tuned_fault", line) for line in faults]
        choice = choose(variant, request, device, winner.evidence.kernel_hash, shelves, self.versions)
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
            default_config=None if choice.source == "default" else variant.default_config(device, request),
        )
        return chosen, notes

    @property
    def versions(self) -> dict[str, str]:
        """Versions installed here, as far as evidence and tuned entries name them."""
        if self._versions is None:
            self._versions = installed.versions(SOFT)
        return self._versions

    def _version_notes(self, evidence: Evidence) -> Iterable[Note]:
        for name in ("triton", "torch"):
            then, here = evidence.versions.get(name), self.versions.get(name)
            if then and here and _release(then) != _release(here):
                yield Note(f"other_{name}", f"validated with {name} {then}, here is {here} ({evidence.trace})")

    def _accuracy(self, winner: _Candidate) -> str:
        """Return the accuracy class; of a variant that no card has measured, whose class it is."""
        if winner.evidence.tier is not Tier.COMPILED:
            return winner.variant.accuracy
        for folder in self.index.evidence_folders(winner.backend):
            records = self.index.evidence(winner.backend, folder, winner.variant.mode, self.request.head_size)
            for each in records:
                same = each.evidence.kernel_hash == winner.evidence.kernel_hash
                if same and each.evidence.op == winner.variant.op and each.evidence.tier is Tier.MEASURED:
                    return f"{each.evidence.accuracy} as on {each.evidence.device}"
        return "unmeasured"

    def _hashes(self, backend: Backend) -> Kernels:
        if backend.name not in self._kernels:
            self._kernels[backend.name] = self.index.kernels(backend)
        return self._kernels[backend.name]

    def _records(self, backend: Backend, mode: Mode) -> list[Recorded]:
        """Return the evidence of the device, its parent and the other cards of its arch."""
        return [
            record
            for folder in self._folders(backend)
            for record in self.index.evidence(backend, folder, mode, self.request.head_size)
            if record.evidence.arch == self.device.arch
        ]

    def _fault_notes(self, backend: Backend, mode: Mode) -> Iterable[Note]:
        for folder in self._folders(backend):
            for fault in self.index.evidence_faults(backend, folder, mode):
                if fault.file.name.startswith(f"d{self.request.head_size}-"):
                    yield Note("bad_trace", f"{fault.file.name} of {folder} is no evidence: {fault.problem}")

    def _folders(self, backend: Backend) -> list[str]:
        """Return the evidence folders of the device's arch, slices of its cards included."""
        if self._relatives is None:
            related = {self.device.key, self.device.parent or self.device.key}
            related |= {each.key for each in self.index.devices() if each.arch == self.device.arch}
            self._relatives = frozenset(key.replace("/", "_") for key in related)
        return [
            folder
            for folder in self.index.evidence_folders(backend)
            if folder in self._relatives or folder.partition("_mig-")[0] in self._relatives
        ]


_FORMAT = Reason(
    "format",
    "format",
    "write, decode and prefill that store one format",
    "accepted variants of different formats",
    "see them with --explain",
)


def measured_at(evidence: Evidence, op: Op, request: Request) -> Timing | None:
    """Return the timing of the request's bucket, or of the next larger one; None when there is none."""
    points = {
        bucket(op, each.batch, each.context): each
        for each in evidence.timings
        if op is Op.WRITE or each.group == request.group
    }
    nearest = stand_in(bucket(op, request.batch, request.context), points)
    return points[nearest] if nearest is not None else None


def _release(version: str) -> tuple[str, ...]:
    """Return major and minor: patch releases and local builds change no kernel's meaning."""
    return tuple(version.split("+")[0].split(".")[:2])
