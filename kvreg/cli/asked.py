"""What a validation is asked for in words: known here, or an error that names the nearest. No torch is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core import asking, probing, registry, resolve
from kvreg.core.environment import Environment
from kvreg.core.errors import BadEnvironment, Refused, UsageError, wrong
from kvreg.core.near import completed

if TYPE_CHECKING:
    from kvreg.core.modes import Mode
    from kvreg.core.variants import Variant


def require_known(device: str | None, modes: Sequence[str], names: Sequence[str], settings: Environment) -> None:
    """Raise UsageError for a device, mode or variant that nothing here has; no torch is needed to tell."""
    wanted = _modes(modes)
    if device is not None:
        platform: str | None = resolve.resolve(device).device.platform
    elif settings.device is not None:
        platform = resolve.of_environment(settings.device).device.platform
    else:
        platform = None
    if names:
        backends = [each for each in registry.backends() if platform in (None, each.platform)]
        _require_variants(names, [v for each in backends for v in each.variants() if not wanted or v.mode in wanted])


def _modes(words: Sequence[str]) -> set[Mode]:
    return {mode for word in words if (mode := asking.parse_mode(word)) is not None}


def _require_variants(names: Sequence[str], offered: Sequence[Variant]) -> None:
    known = {word for each in offered for word in (each.id.name, str(each.id))}
    for name in names:
        if name not in known:
            ids = sorted({str(each.id) for each in offered})
            near = completed(name, ids)
            remedy = f"did you mean {near[0]}?" if near else "take one of these"
            message = wrong(
                "--variant", required=f"one of {', '.join(ids) or 'none here'}", found=repr(name), remedy=remedy
            )
            raise UsageError(message, candidates=near or ids)


def require_writable(folder: Path, target: str) -> None:
    """Raise before hours of work that would leave nothing."""
    if (why := probing.unwritable(folder)) is not None:
        subject, remedy = "KVREG_HOME", "set it to a folder of yours"
        if target == "repo":
            subject, remedy = "--write repo", "take --write overlay"
        found = f"{folder} ({why})"
        raise BadEnvironment(wrong(subject, required="a folder that can be written", found=found, remedy=remedy))


def chosen(offered: Sequence[Variant], modes: Sequence[str], names: Sequence[str]) -> tuple[Variant, ...]:
    """Return the variants of the named modes and names, all of them when none is named."""
    wanted = _modes(modes)
    found = [each for each in offered if not wanted or each.mode in wanted]
    if names:
        _require_variants(names, found)
        found = [each for each in found if each.id.name in names or str(each.id) in names]
    if not found:
        raise Refused(
            wrong(
                f"validate {', '.join(modes)}",
                required="a variant of that mode on the platform",
                found="none in this version",
                remedy=f"its modes are {', '.join(dict.fromkeys(str(each.mode) for each in offered))}",
            )
        )
    return tuple(found)


def no_cells(variants: Sequence[Variant], sizes: Sequence[int]) -> Refused:
    """Return the refusal of head sizes that no variant takes."""
    limits = variants[0].constraints
    return Refused(
        wrong(
            f"head size {', '.join(map(str, sizes))}",
            required=f"{limits.head_min} to {limits.head_max} in steps of {limits.head_step}",
            found="none of these",
            remedy="name a head size that the variants take",
        )
    )
