"""Which config is tried next: a small interface, two strategies of our own, and Optuna's behind the same.

A strategy is deterministic: the same space, seed and results give the same questions, so that a resumed run asks what
the killed one asked and finds the answers in the journal.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvreg.core.errors import UsageError, wrong
from kvreg_tuning.effort import Strategy
from kvreg_tuning.subjects import Config, text_of


class Search(Protocol):
    """Hands out configs and learns what became of them."""

    name: str

    def ask(self, count: int) -> list[Config]:
        """Return up to `count` configs that were not asked before; none when there is nothing left."""

    def tell(self, config: Config, cost: float | None) -> None:
        """Learn the cost of an asked config, lower is better; None is a config that gave no result."""


class Exhaustive:
    """Every config in the order of the space."""

    name = "exhaustive"

    def __init__(self, configs: Sequence[Config]) -> None:
        self._left = list(configs)

    def ask(self, count: int) -> list[Config]:
        """Return the next ones."""
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def tell(self, config: Config, cost: float | None) -> None:
        """Learn nothing."""


class Random(Exhaustive):
    """Every config in a random order: the best of n of them is in the best 3/n of a space with 95 % certainty."""

    name = "random"

    def __init__(self, configs: Sequence[Config], seed: int) -> None:
        super().__init__(random.Random(seed).sample(list(configs), len(configs)))


class Optuna:
    """Optuna's multivariate tree-structured Parzen estimator over the values of the space."""

    name = "optuna"

    START = 24
    """Random configs before the estimator has anything to go by."""

    MISSES = 5
    """Proposals in a row that are known or pruned, after which a random one is taken."""

    def __init__(self, configs: Sequence[Config], knobs: Mapping[str, Sequence[int]], seed: int) -> None:
        self._optuna = _optuna()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        with warnings.catch_warnings():
            # It calls two of these experimental, which says nothing to whoever tunes.
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            sampler = self._optuna.samplers.TPESampler(
                seed=seed,
                n_startup_trials=self.START,
                multivariate=True,
                constant_liar=True,
            )
        self._study = self._optuna.create_study(sampler=sampler)
        # Values are steps of a ladder, mostly powers of two: the estimator sees their places, which are even.
        self._space = {
            name: self._optuna.distributions.IntDistribution(0, len(values) - 1) for name, values in knobs.items()
        }
        self._knobs = knobs
        self._left = {text_of(config): config for config in configs}
        self._asked: dict[str, Any] = {}
        self._spare = random.Random(seed)
        self._worst = 0.0

    def ask(self, count: int) -> list[Config]:
        """Return the estimator's proposals; what it proposed before or what is pruned is drawn again."""
        found: list[Config] = []
        while self._left and len(found) < count:
            found.append(self._next())
        return found

    def tell(self, config: Config, cost: float | None) -> None:
        """Tell the study; a failure counts as twice as slow as the worst so far, so that its surroundings are left."""
        trial = self._asked.pop(text_of(config), None)
        self._worst = max(self._worst, cost if cost is not None else 0.0)
        if trial is not None:
            self._study.tell(trial, cost if cost is not None else self._worst + 1.0)

    def _next(self) -> Config:
        for _ in range(self.MISSES):
            trial = self._study.ask(self._space)
            wanted = {name: self._knobs[name][place] for name, place in trial.params.items()}
            name = next((text for text, config in self._left.items() if wanted.items() <= config.items()), None)
            if name is not None:
                self._asked[name] = trial
                return self._left.pop(name)
            self._study.tell(trial, self._worst + 1.0)
        return self._left.pop(self._spare.choice(list(self._left)))


def make(strategy: Strategy, configs: Sequence[Config], knobs: Mapping[str, Sequence[int]], seed: int) -> Search:
    """Return a search over `configs`; raises UsageError for Optuna where it is not installed."""
    if strategy == "exhaustive":
        return Exhaustive(configs)
    if strategy == "random":
        return Random(configs, seed)
    return Optuna(configs, knobs, seed)


def installed(strategy: Strategy) -> bool:
    """Return whether a strategy can be used here, without importing what it needs."""
    from importlib.util import find_spec

    return strategy != "optuna" or find_spec("optuna") is not None


def _optuna() -> Any:
    try:
        import optuna  # an extra: nobody else needs its hundred modules
    except ModuleNotFoundError:
        raise UsageError(
            wrong(
                "search optuna",
                required="the package optuna",
                found="none",
                remedy="pip install 'kvreg[tune]', or take --search random",
            )
        ) from None
    return optuna
