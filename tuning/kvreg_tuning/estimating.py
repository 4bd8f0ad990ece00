"""Launch parameters for a card that is not here: its pruned space, compiled for the arch and ranked by costs.

Only the main kernel of a variant is compiled, in its usual form (a decode's as it splits contexts, a cache below
2 GiB). What the compiler's figures refuse (kvreg_triton.cross.verdicts) is out; the rest is ranked for each bucket by
kvreg_tuning.costs. Compilations are kept on disk, so that a run that its budget ended goes on when it is called again.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvreg.core.buckets import Bucket
from kvreg.core.devices import Device
from kvreg.core.requests import Op
from kvreg.core.tuned_files import EntryRecord
from kvreg.core.variants import Variant
from kvreg.runtime.launchers import load
from kvreg_triton.cross import verdicts
from kvreg_triton.cross.compilations import Compiled, Compiler
from kvreg_triton.cross.launches import launches
from kvreg_triton.cross.specializations import Specialization, Target
from kvreg_tuning import costs
from kvreg_tuning.benchmark import Workload, splits_of
from kvreg_tuning.choosing import Estimate, choose
from kvreg_tuning.costs import Cost
from kvreg_tuning.entries import estimated_entry
from kvreg_tuning.judging import judge_of
from kvreg_tuning.outcomes import Result, Trial
from kvreg_tuning.session import View
from kvreg_tuning.spaces import Space
from kvreg_tuning.store import Merge, merge
from kvreg_tuning.subjects import Config, Subject, kernel_text, offered, text_of

BUDGET_S = 210.0
"""Of a run that names none: all variants of a shape in one mode end within five minutes on two cores."""

MAIN = {Op.WRITE: "write", Op.DECODE: "attend split", Op.PREFILL: "attend"}
"""Op -> the form that is compiled; see kvreg_triton.cross.launches."""

SHARES = {Op.WRITE: 1.0, Op.DECODE: 2.0, Op.PREFILL: 3.0}
"""How variants share a budget: a portable prefill's space is five times a write's, and prefills compile longest."""

KEPT = ("registers", "spill_bytes", "shared_bytes", "matrix_instruction")
"""Figures that an entry names."""


@dataclass(slots=True)
class Estimation:
    """One call: spaces of one device, and where their winners go."""

    device: Device
    spaces: Sequence[Space]
    compiler: Compiler
    target: Target
    files: Mapping[Subject, Path]
    view: View
    budget_s: float = BUDGET_S
    seed: int = 0
    estimates: list[Estimate] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)

    def run(self) -> None:
        """Estimate every space and write its winners; the device has the facts that costs.require_facts asks for."""
        end = time.monotonic() + self.budget_s
        for number, space in enumerate(self.spaces):
            ahead = sum(SHARES[Op(each.subject.op)] for each in self.spaces[number:])
            share = (end - time.monotonic()) * SHARES[Op(space.subject.op)] / ahead
            found = self._estimate(space, time.monotonic() + share)
            self.estimates += found
            written = [entry for each in found if (entry := _entry(each, space.kernel_hash)) is not None]
            if written:
                environment = {"triton": self.compiler.triton}
                path, judge = self.files[space.subject], judge_of(space.launchable)
                self.merges.append(merge(path, self.device.key, environment, written, judge=judge))

    def _estimate(self, space: Space, deadline: float) -> list[Estimate]:
        _, variant = offered(self.device.platform)[space.subject.variant]
        default, *others = space.candidates.configs
        known = self._known(variant, space)
        first = [config for config in others if config in known]
        rest = [config for config in others if config not in known]
        order = [default, *first, *random.Random(self.seed).sample(rest, len(rest))]
        self.view.begin(space.subject, space.buckets, len(order) - 1, len(space.candidates.pruned))
        trials: dict[str, list[Trial]] = {str(bucket): [] for bucket in space.buckets}
        found: dict[tuple[str, str], Cost] = {}
        done = 0
        for config, compiled in self._compiled(variant, space, order, deadline):
            done += 1
            for bucket in space.buckets:
                trial, cost = self._trial(space, variant, bucket, config, compiled)
                trials[str(bucket)].append(trial)
                if cost is not None:
                    found[str(bucket), text_of(config)] = cost
                self.view.trial(trial, False)
        pruned = Counter(bucket for _, bucket, _ in space.candidates.pruned)
        return [
            choose(
                space.subject,
                bucket,
                trials[str(bucket)],
                default,
                {text: cost for (where, text), cost in found.items() if where == str(bucket)},
                pruned[str(bucket)],
                done < len(order),
            )
            for bucket in space.buckets
        ]

    def _compiled(
        self, variant: Variant, space: Space, order: Sequence[Config], deadline: float
    ) -> Iterator[tuple[Config, Compiled]]:
        """Yield configs with their main kernel as they are ready, until the deadline; the default whatever it says.

        Configs that only plan otherwise are one compilation.
        """
        kernels: dict[str, Specialization] = {}
        for config in order:
            if kernel_text(config) not in kernels:
                kernels[kernel_text(config)] = self._main(variant, space, config)
        made = {text_of(config): kernels[kernel_text(config)] for config in order}
        first = order[0]
        yield first, next(self.compiler.run([made[text_of(first)]], [space.kernel_hash]))[1]
        rest = list(order[1:])
        running = self.compiler.run([made[text_of(config)] for config in rest], [space.kernel_hash] * len(rest))
        try:
            for index, compiled in running:
                yield rest[index], compiled
                if time.monotonic() > deadline:
                    return
        finally:
            running.close()

    def _known(self, variant: Variant, space: Space) -> Sequence[Config]:
        """Return what the platform tries in a validation: parameters of which most are sound."""
        if variant.candidates is None:
            return ()
        return variant.candidates(self.device, space.subject.request(space.buckets[0]))

    def _main(self, variant: Variant, space: Space, config: Config) -> Specialization:
        request = space.subject.request(space.buckets[0])
        found = launches(variant, self.device, request, config, self.target)
        return next(each.specialization for each in found if each.form == MAIN[variant.op])

    def _trial(
        self, space: Space, variant: Variant, bucket: Bucket, config: Config, compiled: Compiled
    ) -> tuple[Trial, Cost | None]:
        limits = verdicts.Limits(self.device.arch, self.device.shared_per_block_max_bytes)
        faults = verdicts.faults(MAIN[variant.op], compiled, limits, matrix=variant.matrix_instruction)
        resources = {name: compiled.reading.get(name) for name in KEPT}
        trial = Trial(config, str(bucket), "ok", compile_s=compiled.seconds, resources=resources)
        if faults and any(each.code != verdicts.SPILLS for each in faults):
            result: Result = _result(compiled)
            return _with(trial, result, "; ".join(map(str, faults))), None
        cost = costs.cost(
            space.subject, bucket, config, self._splits(space.subject, variant, bucket, config), compiled.reading,
            self.device,
        )  # fmt: skip
        if faults:  # only spills: it serves where nothing else does
            return _with(trial, "resource", "; ".join(map(str, faults)), cost.us), cost
        return _with(trial, "ok", "", cost.us), cost

    def _splits(self, subject: Subject, variant: Variant, bucket: Bucket, config: Config) -> int:
        if variant.op is not Op.DECODE:
            return 1
        workload = Workload(bucket, subject.group, subject.kv_heads, subject.head_size)
        return splits_of(load(variant.launcher), workload, self.device, config)


def _result(compiled: Compiled) -> Result:
    failed: Mapping[str, Result] = {"error": "compile", "crash": "crash", "timeout": "timeout"}
    return failed.get(compiled.status, "resource")


def _with(trial: Trial, result: Result, reason: str, us: float | None = None) -> Trial:
    return Trial(
        trial.config,
        trial.bucket,
        result,
        reason,
        us,
        compile_s=trial.compile_s,
        resources=trial.resources,
    )


def _entry(estimate: Estimate, kernel_hash: str) -> EntryRecord | None:
    winner = estimate.winner
    if winner is None or winner.us is None:
        return None
    return estimated_entry(
        estimate.subject,
        estimate.bucket,
        winner.config,
        kernel_hash,
        winner.us,
        estimate.default.us,
        resources={name: value for name, value in winner.resources.items() if value is not None},
    )
