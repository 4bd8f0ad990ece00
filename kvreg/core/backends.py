"""The Backend protocol: what a platform package (or a third party's plug-in) offers. Importing one loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kvreg.core.devices import Device
from kvreg.core.requests import Request
from kvreg.core.variants import Variant


@dataclass(frozen=True, slots=True)
class Detected:
    """A card found on this machine."""

    platform: str
    name: str
    """As the driver names it."""
    arch: str | None = None
    pci_id: str | None = None
    compute_units: int | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    index: int = 0


@runtime_checkable
class Backend(Protocol):
    """One platform. Attributes and methods are cheap and import neither torch nor Triton."""

    name: str
    """cuda, rocm, xpu, cpu, or the plug-in's own word."""
    platform: str
    device_file: Path
    """YAML with this platform's devices."""
    tuned_dir: Path
    """Holds <device>.yaml, written by the tuner only."""
    evidence_dir: Path
    """Holds <device>/... traces, written by `kvreg validate` only."""

    def devices(self) -> Sequence[Device]:
        """Return the devices of `device_file`, parsed."""
        ...

    def detect(self) -> Sequence[Detected]:
        """Return the cards of this platform on this machine, without importing torch."""
        ...

    def variants(self) -> Sequence[Variant]:
        """Return the kernel variants that the platform offers."""
        ...

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return the launch parameters of a variant that may be tuned, and their values.

        The request's batch and context are those of the bucket that is tuned. Every other parameter of a config keeps
        its default.
        """
        ...

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return why a config of the space need not be tried, in one line; None where it must be."""
        ...

    def validate_options(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each option name or value that the platform's compiler would drop or refuse."""
        ...


class FolderBackend:
    """A Backend whose files lie in one folder, with nothing detected, offered or tuned; platforms override the rest.

    Attributes: `name` and `platform` as the class states them; `folder`/devices.yaml, `folder`/tuned and
    `folder`/evidence. A plug-in derives from it:

        class Madeup(FolderBackend):
            name = platform = "madeup"

        BACKEND = Madeup(Path(__file__).parent)
    """

    name: str
    platform: str

    def __init__(self, folder: Path) -> None:
        self.device_file = folder / "devices.yaml"
        self.tuned_dir = folder / "tuned"
        self.evidence_dir = folder / "evidence"

    def devices(self) -> Sequence[Device]:
        """Return the devices of `device_file`; raises BadFile."""
        from kvreg.core.device_files import read  # a warm start reads the index and not this file

        return read(self.device_file)

    def detect(self) -> Sequence[Detected]:
        """Return no card."""
        return ()

    def variants(self) -> Sequence[Variant]:
        """Return no variant."""
        return ()

    def space(self, variant: Variant, device: Device, request: Request) -> Mapping[str, Sequence[int]]:
        """Return no launch parameter."""
        return {}

    def unfit(self, variant: Variant, device: Device, request: Request, config: Mapping[str, int]) -> str | None:
        """Return None: what is in the space is tried."""
        return None

    def validate_options(self, options: Mapping[str, Any]) -> Sequence[str]:
        """Return one line for each option: a platform without a compiler knows none."""
        return tuple(f"{name}: {self.platform} takes no launch option; leave it out" for name in options)
