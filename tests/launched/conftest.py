"""Tests of launches as they are made for a card, in a process whose kernels the interpreter does not run.

    TRITON_INTERPRET=0 pytest tests/launched

The other suites run interpreted, so tests/kernels/test_submission.py runs this one, and none of it is collected there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = ["test_*.py"]
if os.environ.get("TRITON_INTERPRET") == "0":
    sys.path.insert(0, str(Path(__file__).parent))
    collect_ignore_glob = []


@pytest.fixture(scope="session")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import stand_in

    return stand_in.install(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(autouse=True)  # there is no other driver, whichever test comes first
def driver(_driver: Any) -> Any:
    """The driver that writes launches down, none yet."""
    _driver.launches.clear()
    return _driver


@pytest.fixture
def called() -> Callable[[Callable[[], Any]], set[str]]:
    """Return a function that makes a call and returns the "file:function" of all Python that ran in it."""

    def watch(call: Callable[[], Any]) -> set[str]:
        seen: set[str] = set()

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                seen.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return seen

    return watch


@pytest.fixture
def listening() -> Callable[[], AbstractContextManager[list[Any]]]:
    """Return a context in which Triton tells of every launch, as to a profiler; what kvreg makes itself it cannot."""
    from triton import knobs

    @contextmanager
    def listen() -> Iterator[list[Any]]:
        told: list[Any] = []
        knobs.runtime.launch_enter_hook.add(told.append)
        try:
            yield told
        finally:
            knobs.runtime.launch_enter_hook.remove(told.append)

    return listen


@pytest.fixture
def launches(driver):
    """Return a function that makes a call and returns its launches, addresses of its results by name."""

    def of(call: Any) -> list[Any]:
        driver.launches.clear()
        results = call()
        results = results if isinstance(results, tuple) else (results,)
        named = {each.data_ptr(): f"result {place}" for place, each in enumerate(results) if each is not None}
        return [(*launch[:-1], tuple(named.get(value, value) for value in launch[-1])) for launch in driver.launches]

    return of


@pytest.fixture
def again(launches, called, listening):
    """Return a function that says that a call is replayed and makes the launches that Triton makes of the full way."""

    from step import FULL_WAY

    def check(call: Any) -> None:
        with listening() as told:
            wanted = launches(call)
        assert len(told) == len(wanted) > 0
        assert launches(call) == wanted
        found = []
        assert not FULL_WAY & called(lambda: found.extend(launches(call)))
        assert found == wanted

    return check
