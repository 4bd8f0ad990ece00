"""What to commit of a run that wrote into the checkout: the last lines of `kvreg validate` and `kvreg tune`.

docs/contributing-a-card.md is the page for people; this prints its pull request, files and text, ready to be pasted.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.cli import render

if TYPE_CHECKING:
    from kvreg.validation.run import Run, Verdict
    from kvreg_tuning.campaign import Campaign


GENERATED = ("docs", "README.md")
"""What ci/generate.py writes anew: coverage and the outputs that are shown."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A change to a checkout: what is in it and what it says."""

    root: Path
    """Of the checkout."""
    files: tuple[str, ...]
    """Folders and files to commit, below the root."""
    title: str
    body: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as the JSON of a command holds it."""
        return {"root": str(self.root), "files": list(self.files), "title": self.title, "body": list(self.body)}


def pull_request(written: Sequence[Path], title: str, body: Sequence[str]) -> PullRequest | None:
    """Return what to commit of the files that were written; None where they lie in no checkout."""
    root = next((root for path in written for root in path.parents if (root / "pyproject.toml").is_file()), None)
    if root is None:
        return None
    files = sorted({_whole(Path(os.path.relpath(path, root))) for path in written})
    return PullRequest(root, tuple(files), title, tuple(body))


def of_validation(run: Run, rows: Sequence[tuple[Verdict, dict[str, Any]]]) -> PullRequest | None:
    """Return what a checkout gets of a run of the gate; None where nothing was written into one."""
    written = [(each, found) for each, found in rows if each.trace is not None]
    if not written:
        return None
    device, versions = run.machine.device, run.versions
    sizes = sorted({each.head_size for each, _ in written})
    known = ", ".join(f"{name} {versions[name]}" for name in ("driver", "torch", "triton") if versions.get(name))
    worst = max((found["worst"] for each, found in written if each.variant.op.value != "write"), default=None)
    open_ones = sum(each.status != "passed" for each, _ in rows)
    body = [
        f"{device.name} ({device.platform}, {device.arch}): {known or 'no versions'}.",
        f"{len(written)} traces of {len({each.variant.id for each, _ in written})} variants, head sizes "
        f"{', '.join(map(str, sizes))}: {sum(found['cells'] for _, found in written)} cells, "
        f"{sum(found['sequences'] for _, found in written)} sequences"
        + (f", worst e {worst:.1e}." if worst is not None else "."),
        "None failed." if not open_ones else f"{open_ones} variants and head sizes did not pass and have no trace.",
    ]
    paths = [each.trace for each, _ in written if each.trace is not None]
    return pull_request(paths, f"Evidence from {device.key}: {len(written)} traces", body)


def of_tuning(campaign: Campaign) -> PullRequest | None:
    """Return what a checkout gets of a run of the tuner; None where nothing was written into one."""
    device = campaign.device
    won = [verdict for verdict in campaign.verdicts if verdict.winner is not None]
    known = ", ".join(f"{name} {version}" for name, version in sorted(campaign.versions.items()) if version)
    body = [
        f"{device.name} ({device.platform}, {device.arch}): {known}.",
        f"{len(won)} of {len(campaign.verdicts)} subjects and buckets have a winner; it is the default where nothing"
        " beat that.",
    ]
    title = f"Tuned launch parameters of {device.key}: {len(won)} entries"
    return pull_request([campaign.merges[-1].path], title, body)


def show(request: PullRequest | None) -> None:
    """Print it; where nothing lies in a checkout, how to get there."""
    render.line()
    if request is None:
        render.line("to contribute it: run the same in a checkout with --write repo (docs/contributing-a-card.md)")
        return
    render.line(f"to contribute it, in {request.root}:")
    render.line("  python ci/generate.py")
    render.line(f"  git add {' '.join(map(shlex.quote, (*request.files, *GENERATED)))}")
    render.line(f"  git commit -m {shlex.quote(request.title)}")
    render.line("and open a pull request with this text:")
    for line in (request.title, "", *request.body):
        render.line(f"  {line}".rstrip())


def _whole(file: Path) -> str:
    """Return what of a file is committed: of a trace the device's folder, which holds its log too."""
    if "evidence" not in file.parts:
        return str(file)
    return str(Path(*file.parts[: file.parts.index("evidence") + 2]))
