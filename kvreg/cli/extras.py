"""Optional packages of a command: absent, they are one line with the extra that brings them, and exit 6."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvreg.core.errors import DeviceUnavailable, wrong


@contextmanager
def pytest(subject: str) -> Iterator[None]:
    """Stands around the imports of kvreg's pytest plug-in."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DeviceUnavailable(
            wrong(subject, required="pytest", found=f"no module {error.name}", remedy="pip install pytest")
        ) from error


@contextmanager
def kernels(subject: str, required: str = "torch and Triton") -> Iterator[None]:
    """Stands around the imports that need the kernels' packages; judge words first, which need none of them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DeviceUnavailable(
            wrong(
                subject,
                required=required,
                found=f"no module {error.name}",
                remedy="install the kernels' packages: pip install 'kvreg[kernels]'",
            )
        ) from error
