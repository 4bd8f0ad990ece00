"""Makes the plugin objects that the options ask for; a worker of xdist is told what its controller has found out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kvreg.core import output_files
from kvreg.core.errors import KvregError, UsageError, wrong
from kvreg.core.expectations.predicates import Where
from kvreg.pytest.excuses import Excuses

AUDIT = "kvreg.pytest.audit"
_WORKER = "kvreg"
"""Key of what a worker is sent, and of what it sends back."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What expectations are asked for."""

    file: Path | None
    where: Where
    day: date

    def to_worker(self) -> dict[str, Any]:
        """Return it as the plain values that xdist carries."""
        return {"file": str(self.file or ""), "where": asdict(self.where), "day": self.day.isoformat()}

    @classmethod
    def of_worker(cls, sent: dict[str, Any]) -> Asked:
        """Return what `to_worker` was made of."""
        file = Path(sent["file"]) if sent["file"] else None
        return cls(file, Where(**sent["where"]), date.fromisoformat(sent["day"]))


def audit(config: pytest.Config) -> None:
    """Start the audit, unless it has been started. Raises UsageError without numpy."""
    if config.pluginmanager.has_plugin(AUDIT):
        return
    try:
        from kvreg.pytest.audit import MARKER, Audit
    except ModuleNotFoundError as error:
        raise pytest.UsageError(f"--kvreg-audit: required numpy, found {error}; install numpy") from None
    config.pluginmanager.register(Audit(config.rootpath), AUDIT)
    config.addinivalue_line("markers", f"{MARKER}(reason): comparisons that are meant to be loose")


def activate(config: pytest.Config, file: str) -> None:
    """Register everything. What is wrong with the options is a UsageError here, in the user's own process.

    A worker's error would reach the user as an internal error of xdist; a worker is sent what passed here.
    """
    from kvreg.core.expectations.files import usable

    if config.option.kvreg_audit:
        audit(config)
    sent = getattr(config, "workerinput", {}).get(_WORKER)
    try:
        asked = Asked.of_worker(sent) if sent else _asked(config, file)
        survey = usable(asked.file) if asked.file is not None else None
    except KvregError as error:
        raise pytest.UsageError(error.message) from None
    entries = survey.entries if survey is not None else ()
    limit_s = config.option.kvreg_limit_s if config.option.kvreg_run_skipped else None
    excuses = Excuses(entries, asked.where, asked.day, alone_limit_s=limit_s)
    config.pluginmanager.register(excuses, "kvreg.pytest.excuses")
    if sent:
        config.pluginmanager.register(_Worker(config, excuses), "kvreg.pytest.worker")
        return
    from kvreg.pytest.record import Record

    record = Record(config, survey, asked.where, asked.day, excuses.seen, _report_file(config))
    config.pluginmanager.register(record, "kvreg.pytest.record")
    config.pluginmanager.register(_Controller(asked, record), "kvreg.pytest.controller")


def _report_file(config: pytest.Config) -> Path | None:
    """Return the file of --kvreg-report, behind a link; raises UsageError for what is no regular file."""
    named: str | None = config.option.kvreg_report
    if named is None:
        return None
    path = output_files.target("--kvreg-report", named and str(config.invocation_params.dir / named))
    output_files.require_folder("--kvreg-report", path)
    return path


def _asked(config: pytest.Config, file: str) -> Asked:
    from kvreg.pytest import place

    option = config.option
    # An option counts from where pytest was started, an ini key from the project's root.
    folder = config.rootpath if option.kvreg_expectations is None else config.invocation_params.dir
    path = folder / file if file else None
    _report_file(config)
    if not option.kvreg_limit_s > 0:
        found = f"{option.kvreg_limit_s:g}"
        raise UsageError(wrong("--kvreg-limit-s", required="more than 0 seconds", found=found, remedy="raise it"))
    where = place.where(option.kvreg_platform, option.kvreg_device)
    return Asked(path, where, place.day(option.kvreg_as_of, path or config.rootpath / "any"))


class _Worker:
    """In a worker: sends back which entries have met a test."""

    def __init__(self, config: pytest.Config, excuses: Excuses) -> None:
        self._config = config
        self._excuses = excuses

    def pytest_sessionfinish(self) -> None:
        """Leave the answer where xdist takes it from."""
        self._config.workeroutput[_WORKER] = self._excuses.seen.to_controller()  # type: ignore[attr-defined]


class _Controller:
    """In the user's process: what workers are sent, and what they send back."""

    def __init__(self, asked: Asked, record: Any) -> None:
        self._asked = asked
        self._record = record

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker what was asked."""
        node.workerinput[_WORKER] = self._asked.to_worker()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has seen; one that died has nothing to say."""
        answer = getattr(node, "workeroutput", {}).get(_WORKER)
        if answer:
            self._record.seen.add(answer)
