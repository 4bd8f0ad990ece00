"""Known calls, launched again without a look at anything but addresses.

What an eager call costs the host is checks, arguments and the search for compiled kernels. All follow from what the
host sees of a call but for the tensors' addresses (what that is: kvreg.runtime.call_facts), so that one which equals
an earlier one of its cache makes the same launches with other addresses in them. Those launches are kept with the
cache, and no tensor with them: a recording says at which place of the call an address stands.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Protocol

import torch

MOST_CALLS = 64
"""Calls that a cache knows: decode at some thirty batch sizes, as engines pad and capture them, by each split of a
growing context, and the writes; the oldest makes way. One of two launches takes 2.5 KB: a model of 64 layers 10 MB."""

WIDEST = 16
"""Bytes that kernels are compiled for a multiple of: of a pointer more is not told to them."""


class Direct(Protocol):
    """A compiled kernel with its grid, which a launcher's launch was handed to."""

    def ready(self) -> bool:
        """Return whether it may be launched as it is: nobody listens to launches who would have to be told."""

    def run(self, values: tuple[Any, ...]) -> None:
        """Launch on the current stream of its device; `values`: addresses and numbers in the kernel's order."""


class Call:
    """The launches of a call: each a compiled kernel, the places its values come from, and those that stay."""

    __slots__ = ("_launches",)

    def __init__(self, launches: Sequence[tuple[Direct, Any, tuple[Any, ...]]]) -> None:
        self._launches = tuple(launches)

    def ready(self) -> bool:
        """Return whether it may be made again now."""
        return self._launches[0][0].ready()

    def again(self, addresses: list[int]) -> None:
        """Launch with these addresses, one for each tensor in the order that was recorded."""
        for direct, pick, fixed in self._launches:
            direct.run(pick((*addresses, *fixed)))


class Recording:
    """What a launcher submits while a call is made the full way."""

    def __init__(self, given: Sequence[torch.Tensor | None], made: Sequence[torch.Tensor | None]) -> None:
        self._places = {id(tensor): place for place, tensor in enumerate(given) if tensor is not None}
        # Of one tensor in two places it cannot be told which of the two a kernel was handed.
        self.whole = len(self._places) == sum(tensor is not None for tensor in given)
        """Whether all launches of the call can be made again."""
        self.hopeless = False
        """Whether no call of this cache could be."""
        self.launches: list[tuple[Direct, Any, tuple[Any, ...]]] = []
        self._size = len(given) + len(made)
        for place, tensor in enumerate(made, len(given)):
            if tensor is not None:
                self._places.setdefault(id(tensor), place)

    def add(self, direct: Direct, values: Sequence[Any]) -> None:
        """Take a launch as it was made; `values`: tensors and numbers in the kernel's order."""
        places: list[int] = []
        fixed: list[Any] = []
        for value in values:
            if not isinstance(value, torch.Tensor):
                places.append(self._size + len(fixed))
                fixed.append(value)
            elif id(value) in self._places:
                places.append(self._places[id(value)])
            else:
                self.whole = False  # a tensor that the launcher made itself
                return
        self.whole &= len(places) > 1
        if self.whole:
            self.launches.append((direct, itemgetter(*places), tuple(fixed)))

    def spoil(self, *, for_good: bool = False) -> None:
        """Say that a launch was made in another way; `for_good`: and that every other will be."""
        self.whole = False
        self.hopeless |= for_good


class Known:
    """The calls that one cache has seen."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], Call] = {}
        self._lock = threading.Lock()
        self.hopeless = False
        """Whether to leave it, since launches on this device cannot be made again."""

    def __len__(self) -> int:
        return len(self._calls)

    def find(self, facts: tuple[Any, ...]) -> Call | None:
        """Return the call of equal facts, where there is one and it may be made again now."""
        call = self._calls.get(facts)
        return call if call is not None and call.ready() else None

    def keep(self, facts: tuple[Any, ...], recording: Recording) -> None:
        """Keep a call that was made the full way, if it can be made again."""
        self.hopeless |= recording.hopeless
        if recording.whole and recording.launches:
            with self._lock:
                # Another thread may have recorded the same call meanwhile: it takes no second place.
                if facts not in self._calls and len(self._calls) >= MOST_CALLS:
                    del self._calls[next(iter(self._calls))]
                self._calls[facts] = Call(recording.launches)


class Asked:
    """A call before it is made: all that decides its launches, and its tensors with their addresses."""

    __slots__ = ("_addresses", "_call", "_facts", "_known", "_tensors")

    def __init__(
        self,
        known: Known,
        facts: tuple[Any, ...],
        addresses: list[int],
        tensors: tuple[torch.Tensor | None, ...],
    ) -> None:
        self._known = known
        self._facts = facts
        self._addresses = addresses
        self._tensors = tensors
        self._call = known.find(facts)

    @property
    def is_known(self) -> bool:
        """Whether an equal call was made before and can be made again now."""
        return self._call is not None

    def again(self, *made: torch.Tensor | None) -> bool:
        """Make the call as it was made before, with the tensors that it fills; False where it goes the full way."""
        if self._call is None:
            return False
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in made]
        if any(address % WIDEST for address in addresses):
            return False  # kernels were compiled for what an allocator gives
        self._call.again(self._addresses + addresses)
        return True

    @contextmanager
    def recorded(self, *made: torch.Tensor | None) -> Iterator[None]:
        """Keep what this thread submits as this call; `made`: the tensors that it fills, as in `again`."""
        before, recording = _state.recording, Recording(self._tensors, made)
        _state.recording = recording
        try:
            yield
        finally:
            _state.recording = before
        if not any(tensor is not None and tensor.data_ptr() % WIDEST for tensor in made):
            self._known.keep(self._facts, recording)


class _State(threading.local):
    recording: Recording | None = None
    paused = False


_state = _State()


def current() -> Recording | None:
    """Return the recording that launches of this thread belong to."""
    return _state.recording


def is_paused() -> bool:
    """Return whether this thread makes every call the full way."""
    return _state.paused


@contextmanager
def paused() -> Iterator[None]:
    """Make every call of this thread the full way: where launches are looked at or compiled instead of made."""
    before, _state.paused = _state.paused, True
    try:
        yield
    finally:
        _state.paused = before
