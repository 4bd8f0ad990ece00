"""An index for a run of many selects: each file is looked at once, so what changes meanwhile is not seen."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kvreg.core.backends import Backend
from kvreg.core.index import SHIPPED, Fault, Index, Kernels, Recorded
from kvreg.core.variants import Variant

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching

T = TypeVar("T")


class Snapshot(Index):
    """Index whose answers are kept for the life of the object."""

    def __init__(
        self,
        backends: Sequence[Backend],
        home: Path | None,
        shipped: Path | None = SHIPPED,
        exceptions: Path | None = None,
    ) -> None:
        super().__init__([cast(Backend, _Still(each)) for each in backends], home, shipped, exceptions)
        self._answers: dict[Hashable, Any] = {}

    def kernels(self, backend: Backend) -> Kernels:
        """Return the kernel hashes of a backend's variants, by variant id."""
        return self._once(("kernels", backend.name), lambda: super(Snapshot, self).kernels(backend))

    def expectations(self) -> tuple[Touching, ...]:
        """Return the recorded exceptions of kvreg's own tests that name variants."""
        return self._once(("expectations",), lambda: super(Snapshot, self).expectations())

    def evidence_folders(self, backend: Backend) -> tuple[str, ...]:
        """Return the names of the device folders that hold evidence, shipped or in the overlay, sorted."""
        return self._once(("folders", backend.name), lambda: super(Snapshot, self).evidence_folders(backend))

    def evidence(self, backend: Backend, folder: str, mode: str, head_size: int) -> tuple[Recorded, ...]:
        """Return the sound evidence of one device folder, mode and head size: the overlay's first."""
        return self._once(
            ("evidence", backend.name, folder, mode, head_size),
            lambda: super(Snapshot, self).evidence(backend, folder, mode, head_size),
        )

    def evidence_faults(self, backend: Backend, folder: str, mode: str) -> tuple[Fault, ...]:
        """Return the traces of one device folder and mode that are no evidence."""
        return self._once(
            ("faults", backend.name, folder, mode),
            lambda: super(Snapshot, self).evidence_faults(backend, folder, mode),
        )

    def tuned_part(self, backend: Backend, path: Path, overlay: bool, part: str) -> Any:
        """Return one part of a tuned file: a shape, FAULTS, or the list of all."""
        return self._once(
            ("tuned", path, overlay, part),
            lambda: super(Snapshot, self).tuned_part(backend, path, overlay, part),
        )

    def _once(self, key: Hashable, ask: Callable[[], T]) -> T:
        if key not in self._answers:
            self._answers[key] = ask()
        return cast(T, self._answers[key])


class _Still:
    """A backend whose variants are made once; everything else is the backend's own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @cached_property
    def _variants(self) -> tuple[Variant, ...]:
        return tuple(self._backend.variants())

    def variants(self) -> Sequence[Variant]:
        """Return the kernel variants that the platform offers."""
        return self._variants
