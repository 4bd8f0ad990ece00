"""The pytest plugin: expectations of a named card, an audit of comparisons, and a report of what really ran.

    pytest --kvreg-expectations expectations.yaml --kvreg-device mi300x --kvreg-report report.json
    pytest --kvreg-audit

Every pytest on a machine with kvreg installed loads this module, so it holds the options and nothing else: without one
of them neither torch, YAML nor pydantic is imported. The plug-in's name is `kvreg.pytest`, for `-p` as well.
"""

from __future__ import annotations

import pytest

EXPECTATIONS = "kvreg_expectations"
"""Ini key of --kvreg-expectations."""
DEFAULT_LIMIT_S = 120.0
"""Time limit of a test in a process of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("kvreg", "expectations and evidence (kvreg)")
    add = group.addoption
    add("--kvreg-expectations", metavar="FILE", help="apply this list of expectations; an empty name: none")
    add("--kvreg-platform", metavar="PLATFORM", help="platform that they are asked for (default: this machine's)")
    add("--kvreg-device", metavar="DEVICE", help="device that they are asked for (default: this machine's)")
    add("--kvreg-as-of", metavar="DATE", help="day on which they expire or not (default: the commit's date)")
    add("--kvreg-report", metavar="FILE", help="write what ran and what was excused as one JSON document")
    add(
        "--kvreg-run-skipped",
        action="store_true",
        help="run tests whose expectation is skip, each in a process of its own with a time limit",
    )
    add(
        "--kvreg-limit-s",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_LIMIT_S,
        help="time limit of --kvreg-run-skipped (default: %(default)g)",
    )
    add("--kvreg-audit", action="store_true", help="fail tests whose comparisons would pass for wrong results too")
    parser.addini(EXPECTATIONS, "list of expectations to apply; --kvreg-expectations goes before it", default="")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the audit before a conftest can import what is compared with."""
    if early_config.known_args_namespace.kvreg_audit:
        from kvreg.pytest.activation import audit

        audit(early_config)


def pytest_configure(config: pytest.Config) -> None:
    """Load what the options ask for; raises UsageError in the process that the user started, never in a worker."""
    file = expectations_file(config)
    option = config.option
    if file or option.kvreg_report is not None or option.kvreg_audit:
        from kvreg.pytest.activation import activate

        activate(config, file)


def expectations_file(config: pytest.Config) -> str:
    """Return the list to apply, empty for none."""
    asked = config.getoption("kvreg_expectations")
    return str(config.getini(EXPECTATIONS) if asked is None else asked)
