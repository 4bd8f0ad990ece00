"""`kvreg doctor`: what this machine has, what keeps kernels from running, and the command that mends it.

Versions are read from package metadata: importing torch takes seconds, and doctor is for machines where it fails.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import click

import kvreg
from kvreg.cli import render
from kvreg.cli.once import Command
from kvreg.core import device_files, environment, overlay, probing, registry, resolve
from kvreg.core.backends import Backend, Detected
from kvreg.core.errors import Finding, KvregError
from kvreg.core.supported import PACKAGES, PYTHON, TRITON_XPU, Supported

INSTALL = "pip install 'kvreg[kernels]'"
_NO_INDEX = "cannot be kept; each command reads YAML"
_TORCH_COMMAND = {
    "cuda": f"pip install --force-reinstall 'torch{PACKAGES['torch']}'",
    "rocm": "run the pip command that https://pytorch.org/get-started/locally gives for ROCm",
    "xpu": "run the pip command that https://pytorch.org/get-started/locally gives for XPU",
}
"""How to get the build of torch for a platform; ROCm's and XPU's lie on an index whose address names a release."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card of this machine and the device that serves it."""

    index: int
    name: str
    device: str | None
    arch: str | None
    memory_gb: float | None
    driver: str | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: `state` is ok, missing, too old or too new."""

    name: str
    installed: str | None
    supported: str
    state: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A backend or plug-in: `state` is ok or says why it offers nothing."""

    name: str
    platform: str | None
    devices: int
    variants: int
    state: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Something to mend, and how."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that doctor found."""

    ok: bool
    """Whether `kvreg select` can work as things are set."""
    python: Package
    cards: tuple[Card, ...]
    packages: tuple[Package, ...]
    backends: tuple[Loaded, ...]
    home: str
    home_writable: bool
    index: str
    missing: tuple[Missing, ...]


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(as_json: bool) -> int:
    """Say what this machine has, what is missing and how to get it. Exit 0 when select can work."""
    report = examine()
    if as_json:
        render.document({"schema": 1, **asdict(report)})
    else:
        _show(report)
    return 0 if report.ok else Finding.exit_code


def examine() -> Report:
    """Return what there is on this machine; whatever cannot be found out is reported, not raised."""
    backends = tuple(_backend(backend) for backend in registry.backends())
    failed = tuple(Loaded(one.name, None, 0, 0, one.problem) for one in registry.failures())
    detected = registry.detect()
    packages = tuple(_package(name, supported) for name, supported in PACKAGES.items())
    xpu = _package("triton-xpu", TRITON_XPU)
    if xpu.installed or any(card.platform == "xpu" for card in detected):
        packages = (*packages, xpu)
    home = environment.home()
    writable = probing.unwritable(home) is None
    variables = _variables()
    index = _index(home, writable)
    missing = _missing(packages, detected, home, writable, index, (*backends, *failed))
    return Report(
        ok=_offered(backends) and not variables,
        python=Package("python", platform.python_version(), str(PYTHON), "ok"),
        cards=_cards(detected),
        packages=packages,
        backends=(*backends, *failed),
        home=str(home),
        home_writable=writable,
        index=index,
        missing=(*variables, *(one for one in missing if one.what not in {each.what for each in variables})),
    )


def _offered(backends: tuple[Loaded, ...]) -> bool:
    return any(one.devices for one in backends) and any(one.variants for one in backends)


def _variables() -> tuple[Missing, ...]:
    """Return the variables that other commands would stop at."""
    environment.warn_of_unknown(os.environ)
    found: list[KvregError] = list(environment.faults())
    if (named := environment.device()) is not None:
        try:
            resolve.of_environment(named)
        except KvregError as error:
            found.append(error)
    return tuple(_mended(error) for error in found)


def _mended(error: KvregError) -> Missing:
    """Return an error's line, `subject: required ..., found ...; remedy`, by its parts."""
    subject, _, rest = error.message.partition(": ")
    why, _, remedy = rest.rpartition("; ")
    return Missing(subject, why, remedy)


def _backend(backend: Backend) -> Loaded:
    devices = variants = 0
    try:
        devices = sum(not device.is_arch for device in backend.devices())
        variants = len(backend.variants())
        state = "ok" if variants else "offers no variant"
    except Exception as error:  # doctor reports what other commands stop at
        state = error.message if isinstance(error, KvregError) else f"{type(error).__name__}: {error}"
    return Loaded(backend.name, backend.platform, devices, variants, state)


def _cards(detected: tuple[Detected, ...]) -> tuple[Card, ...]:
    try:
        devices = device_files.devices()
    except KvregError:
        devices = ()  # the backends' table says why
    found = []
    for card in detected:
        served = resolve.resolve_card(card, devices)
        memory = None if card.memory_bytes is None else round(card.memory_bytes / 1e9, 1)
        key, notes = (served.device.key, served.notes) if served else (None, ("neither its name nor arch is known",))
        found.append(Card(card.index, card.name, key, card.arch, memory, card.driver, notes))
    return tuple(found)


def _package(name: str, supported: Supported) -> Package:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, str(supported), "missing")
    too = "too old" if supported.older(installed) else "too new"
    return Package(name, installed, str(supported), "ok" if supported.holds(installed) else too)


def _index(home: Path, writable: bool) -> str:
    if (Path(kvreg.__file__).parent / "_index").is_dir():
        return "shipped with the package"
    cache = home / "cache" / "index"
    kept = sum(1 for _ in cache.rglob("*.json")) if os.path.isdir(cache) else 0  # False where none may look
    if kept:
        return f"kept in {cache} ({kept} files)"
    return "not built yet; the first select builds it" if writable else _NO_INDEX


def _missing(
    packages: tuple[Package, ...],
    cards: tuple[Detected, ...],
    home: Path,
    writable: bool,
    index: str,
    backends: tuple[Loaded, ...],
) -> list[Missing]:
    platforms = tuple(dict.fromkeys(card.platform for card in cards))
    found = [Missing(f"backend {one.name}", one.state, _backend_remedy(one)) for one in backends if one.state != "ok"]
    found += [_package_to_mend(one) for one in packages if one.state != "ok" and _needed(one.name, platforms)]
    installed = {package.name: package.installed for package in packages}
    for platform_ in platforms:
        if problem := _wrong_build(installed["torch"] or "", platform_):
            found.append(Missing(f"torch for {platform_}", problem, _TORCH_COMMAND[platform_]))
    if installed["triton"] and installed.get("triton-xpu"):
        why = "triton and triton-xpu share file names, and the one installed last has overwritten the other"
        found.append(Missing("one Triton", why, "pip uninstall -y triton triton-xpu, then install one of the two"))
    if not writable:
        lost = "no index, no overlay, no journal" if index == _NO_INDEX else "no overlay, no journal"
        why = f"{home} cannot be written: {lost}"
        found.append(Missing("KVREG_HOME", why, "set KVREG_HOME to a folder of yours"))
    for folder, problem in overlay.closed(home):
        why, _, remedy = problem.removeprefix(f"{folder}: ").rpartition("; ")
        found.append(Missing(str(folder), why, remedy))
    return found


def _needed(package: str, platforms: tuple[str, ...]) -> bool:
    """Return whether a package has a use here: triton has wheels for Linux only, and Intel has its own."""
    return package != "triton" or (sys.platform.startswith("linux") and platforms != ("xpu",))


def _package_to_mend(package: Package) -> Missing:
    if package.installed is None and package.name in PACKAGES:
        return Missing(package.name, "kernels cannot run without it; select can", INSTALL)
    why = f"required {package.supported}, found {package.installed or 'none'}"
    return Missing(package.name, why, f"pip install '{package.name}{package.supported}'")


def _wrong_build(torch: str, platform_: str) -> str | None:
    """Return why an installed torch cannot drive the cards of a platform.

    The local part of its version names the build: 2.11.0+cu128, +rocm7.0, +xpu, +cpu. Any other word, or none (the
    package index's default), tells nothing.
    """
    _, _, build = torch.partition("+")
    words = {"cpu": "cpu", "cu": "cuda", "rocm": "rocm", "xpu": "xpu"}
    built_for = next((name for word, name in words.items() if build.startswith(word)), platform_)
    if platform_ not in _TORCH_COMMAND or built_for == platform_:
        return None
    return f"torch {torch} is built for {built_for}, the card here needs {platform_}"


def _backend_remedy(backend: Loaded) -> str:
    if backend.platform is None:
        return "mend or uninstall the package of the plug-in"
    return "reinstall: pip install --force-reinstall kvreg"


def _show(report: Report) -> None:
    if report.cards:
        render.table(
            ("card", "name", "device", "arch", "memory GB", "driver"),
            [(one.index, one.name, one.device, one.arch, one.memory_gb, one.driver) for one in report.cards],
            title="cards",
        )
        for card in report.cards:
            for note in card.notes:
                render.line(f"note: card {card.index}: {note}")
    else:
        render.line("cards: none found; select answers for any card with --device, kernels run on cpu only")
    render.line()
    packages = (report.python, *report.packages)
    render.table(
        ("package", "installed", "supported", "state"),
        [(one.name, one.installed or "-", one.supported, one.state) for one in packages],
        title="packages",
    )
    render.line()
    render.table(
        ("backend", "platform", "devices", "variants", "state"),
        [(one.name, one.platform or "-", one.devices, one.variants, one.state) for one in report.backends],
        title="backends",
    )
    render.line()
    render.line(f"KVREG_HOME: {report.home} ({'writable' if report.home_writable else 'not writable'})")
    render.line(f"index: {report.index}")
    for one in report.missing:
        render.line(f"missing: {one.what}: {one.why}; {one.remedy}")
    render.line()
    if report.ok:
        device = next((card.device for card in report.cards if card.device), "h200")
        render.line(f"select can work: kvreg select --device {device} --head-size 128")
    elif not _offered(report.backends):
        render.line("select cannot work: no backend offers devices and variants")
    else:
        wrong = " and ".join(one.what for one in report.missing if one.what in environment.VARIABLES)
        render.line(f"select cannot work: {wrong} must be mended or unset")
