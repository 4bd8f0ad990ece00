"""Which device is validated, where its tensors lie, and with which versions: all that a result depends on."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import kvreg
from kvreg.core import device_files, installed, registry, resolve
from kvreg.core.backends import Backend, Detected
from kvreg.core.devices import Device
from kvreg.core.errors import DeviceUnavailable, Refused, UsageError, wrong
from kvreg.core.variants import Variant
from kvreg_tuning.worker import Outcome, Worker

PLACES = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "cpu": "cpu"}
"""torch's device type for each platform; a plug-in's platform goes by its own name."""

PROBE_TIMEOUT_S = 120.0

_HERE = "or name a device of this machine: `kvreg doctor` lists them"

Numerics = Literal["device", "interpreter"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One device of this machine, or the interpreter standing in for one."""

    device: Device
    backends: tuple[Backend, ...]
    """Those of the platform, the built-in one first: a plug-in may offer further kernels for it."""
    numerics: Numerics
    place: str
    """torch device of the tensors: cpu, cuda:0, ..."""
    driver: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Laid over the workers' environment."""

    @property
    def is_card(self) -> bool:
        """Whether kernels run on a card, where they can be timed and lost."""
        return self.place != "cpu"

    def all_variants(self) -> tuple[Variant, ...]:
        """Return every variant that the platform offers."""
        return tuple(variant for backend in self.backends for variant in backend.variants())

    def owner(self, variant: Variant) -> Backend:
        """Return the backend that offers a variant; its evidence folder is where a trace belongs in a checkout."""
        return next(each for each in self.backends if variant.id in [offered.id for offered in each.variants()])

    def variants(self, family: str | None = None) -> tuple[Variant, ...]:
        """Return the platform's variants that can run here; raises Refused when there are none."""
        offered = [each for each in self.all_variants() if family in (None, each.family)]
        if self.numerics == "interpreter":
            offered = [each for each in offered if each.family == "triton" and not each.needs_card]
        if not offered:
            what = (
                "Triton variants, which are all that the interpreter runs" if self.numerics != "device" else "variants"
            )
            raise Refused(
                wrong(
                    f"validate on {self.device.key}",
                    required=f"{what} of {self.device.platform}",
                    found="none" if family is None else f"none of the family {family}",
                    remedy="`kvreg select --explain` shows what the platform offers",
                )
            )
        return tuple(offered)


def machine_for(
    asked: str | None, *, interpreter: bool = False, default: str | None = None, command: str = "validate"
) -> Machine:
    """Return the machine for a device's name; None takes `default` (KVREG_DEVICE), else this machine's card.

    Raises UnknownDevice, and DeviceUnavailable, which names `command`, when the device is not in this machine.
    """
    resolution = resolve.resolve(asked) if asked is not None else resolve.default_device(default)
    device = resolution.device
    backends = tuple(each for each in registry.backends() if each.platform == device.platform)
    if interpreter:
        return Machine(device, backends, "interpreter", "cpu", None, {"TRITON_INTERPRET": "1"})
    # A test run or a shell may have turned the interpreter on; a device's numbers must come from the device.
    if device.platform == "cpu":
        return Machine(device, backends, "device", "cpu", None, {"TRITON_INTERPRET": "0"})
    index, card = _card(device, backends, command)
    place = f"{PLACES.get(device.platform, device.platform)}:{index}"
    return Machine(device, backends, "device", place, card.driver, {"TRITON_INTERPRET": "0"})


def _card(device: Device, backends: Sequence[Backend], command: str) -> tuple[int, Detected]:
    """Return the first card of the machine that is `device`, and torch's index of it."""
    known = device_files.devices()
    seen: list[str] = []
    for card in (card for backend in backends for card in backend.detect()):
        found = resolve.resolve_card(card, known)
        if found is not None and found.device.key == device.key:
            return card.index, card
        seen.append(f"{card.name} ({found.device.key if found else 'unknown'})")
    raise DeviceUnavailable(
        wrong(
            f"{command} on {device.key}",
            required="that card in this machine",
            found=", ".join(seen) or f"no {device.platform} card",
            remedy="run it where the card is, "
            + ("name the card here, or take --interpreter for the numerics" if command == "validate" else _HERE),
        )
    )


def probe(machine: Machine) -> dict[str, Any]:
    """Return what the device says of itself from a fresh process; raises DeviceUnavailable when it does not answer."""
    with Worker(environment=machine.environment) as worker:
        outcome = worker.run("kvreg.validation.work:probe", {"place": machine.place}, timeout_s=PROBE_TIMEOUT_S)
    if outcome.status != "ok":
        raise DeviceUnavailable(_no_answer(machine, outcome))
    return dict(outcome.value)


def _no_answer(machine: Machine, outcome: Outcome) -> str:
    remedy = "`kvreg doctor` says what is missing"
    if "No module named" in outcome.error:
        remedy = "install the kernels' packages: pip install 'kvreg[kernels]'"
    return wrong(
        f"device {machine.device.key}", required=f"an answer from {machine.place}", found=outcome.error, remedy=remedy
    )


def versions(machine: Machine, probed: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions that a trace names: kvreg, python, torch, triton, driver, card."""
    triton = any(each.family == "triton" for each in machine.all_variants())
    return {
        "kvreg": kvreg_version(),
        "python": probed["python"],
        "torch": probed["torch"],
        "triton": probed["triton"] if triton else None,
        "driver": machine.driver,
        "card": probed["card"] if machine.numerics == "device" else None,
    }


_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
"""The variable by which each platform hides cards from a process."""


def cards(machine: Machine, probed: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """Return what to lay over a worker's environment so that it sees one card, for each card of the machine's name.

    One empty mapping where there is one, where cards differ, or where another than the first was asked for.
    """
    name, count = _VISIBLE.get(machine.device.platform), probed["alike"]
    if name is None or count < 2 or machine.place != "cuda:0":
        return ({},)
    visible = [each.strip() for each in os.environ.get(name, "").split(",") if each.strip()]
    if visible and len(visible) != count:
        return ({},)
    return tuple({name: each} for each in visible or map(str, range(count)))


def kvreg_version() -> str | None:
    """Return the version of the installed package, else the one that the source tree states."""
    found = installed.versions(("kvreg",)).get("kvreg")
    if found is not None:
        return found
    project = Path(kvreg.__file__).parent.parent / "pyproject.toml"
    try:
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None


def evidence_folder(machine: Machine, variant: Variant, home: Path, target: str) -> Path:
    """Return where a variant's traces go: `overlay` under KVREG_HOME, `repo` into the checkout that it comes from.

    Raises UsageError for `repo` where there is no checkout.
    """
    return home / "evidence" if target == "overlay" else in_checkout(machine.owner(variant).evidence_dir)


def in_checkout(folder: Path | None) -> Path:
    """Return a folder of a platform where it belongs to a checkout; raises UsageError where it does not.

    A package in an environment that lies in a checkout, as .venv often does, is a copy: what is written beside it
    would never be committed.
    """
    for parent in folder.parents if folder else ():
        if (parent / "pyvenv.cfg").is_file() or parent.name in ("site-packages", "dist-packages"):
            break
        if folder and (parent / "pyproject.toml").is_file():
            return folder
    raise UsageError(
        wrong(
            "--write repo",
            required="kvreg running from its checkout",
            found=f"an installed package at {folder.parent if folder else 'no folder'}",
            remedy="pip install -e '.[kernels]' in the checkout, or take --write overlay",
        )
    )
