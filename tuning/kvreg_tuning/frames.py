"""How a worker and its driver talk: one JSON document a frame, on a pipe of their own.

    | length, 8 bytes, big-endian | UTF-8 JSON of that many bytes |

The pipe is neither stdin nor stdout, so whatever a task, a compiler or a driver prints cannot be taken for a result.
Non-finite numbers are written as Python's json writes them (NaN, Infinity): both ends are Python.
"""

from __future__ import annotations

import json
import os
from typing import Any

HEADER_BYTES = 8

LARGEST_BYTES = 1 << 30
"""A longer announcement can only come from something that is no worker of ours writing into the pipe."""


class BrokenFrame(Exception):
    """What arrived is no frame."""


def send(descriptor: int, document: Any) -> None:
    """Write one frame, waiting for the reader; raises TypeError or ValueError for what JSON cannot say."""
    body = json.dumps(document).encode()
    rest = memoryview(len(body).to_bytes(HEADER_BYTES, "big") + body)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> Any:
    """Read one frame, waiting for it; raises EOFError when the other end is closed."""
    size = int.from_bytes(_exactly(descriptor, HEADER_BYTES), "big")
    return json.loads(_exactly(descriptor, size))


def _exactly(descriptor: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(descriptor, count - len(parts))
        if not part:
            raise EOFError("the other end of the pipe is closed")
        parts += part
    return bytes(parts)


class Assembler:
    """Puts frames together from the pieces that a non-blocking pipe yields."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> None:
        """Add what was read."""
        self._bytes += piece

    def take(self) -> Any | None:
        """Return the next complete document, None while it is not complete; raises BrokenFrame for anything else."""
        if len(self._bytes) < HEADER_BYTES:
            return None
        size = int.from_bytes(self._bytes[:HEADER_BYTES], "big")
        if size > LARGEST_BYTES:
            raise BrokenFrame(f"a frame of {size} bytes was announced, at most {LARGEST_BYTES} are sent")
        if len(self._bytes) < HEADER_BYTES + size:
            return None
        body = bytes(self._bytes[HEADER_BYTES : HEADER_BYTES + size])
        del self._bytes[: HEADER_BYTES + size]
        try:
            return json.loads(body)
        except ValueError as error:
            raise BrokenFrame(f"a frame of {size} bytes is no JSON: {error}") from None
