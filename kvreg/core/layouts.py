"""Where the bytes of a cache lie. Every kernel takes pointers and strides; only this module knows the arithmetic.

`planar.1`, one page and KV head is one contiguous run (r bytes a row, P tokens a page):

    0            P*r            2*P*r        2*P*r+4*P     run = 2*P*r + 8*P
    | K rows     | V rows       | K scales   | V scales   |      (no scale planes where rows carry none)

`planar.2`, for int4 alone, differs in V: a page's tokens are adjacent and the bytes of a row a page apart, so that
byte j of token t lies at P*r + j*P + t of its run. The product of weights and values sums over tokens, and matrix
units of 8 bits want what they sum over side by side (1.4 times the speed for a decode on an H200).

`inline.1`, the slots of vLLM 0.28 and later, C = 2*(r+4) bytes for each (slot, head), heads inside slots:

    | K row (r) | K scale (4) | V row (r) | V scale (4) |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvreg.core.errors import UsageError, shown, wrong
from kvreg.core.modes import SCALE_BYTES, Mode

_PATTERN = re.compile(r"(?P<family>[a-z]+)\.(?P<revision>[1-9][0-9]*)")


@dataclass(frozen=True, slots=True, order=True)
class LayoutId:
    """A layout's name and revision; one id has one reading for ever."""

    family: str
    revision: int

    @classmethod
    def parse(cls, text: str) -> LayoutId:
        """Read `planar.1`; raises UsageError for a text of another form."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise _unknown("layout", None, shown(text))
        return cls(match["family"], int(match["revision"]))

    @classmethod
    def of(cls, given: object) -> LayoutId:
        """Return the id that a caller gave, as it is or as a text; raises UsageError for anything else."""
        if isinstance(given, str):
            return cls.parse(given)
        if isinstance(given, cls):
            return given
        raise _unknown("layout", None, shown(given))

    def __str__(self) -> str:
        return f"{self.family}.{self.revision}"


PLANAR = LayoutId("planar", 1)
TOKEN_MINOR = LayoutId("planar", 2)
INLINE = LayoutId("inline", 1)


def known(mode: Mode | None = None) -> tuple[str, ...]:
    """Return the ids that this version can lay out for a mode (None: for some mode), the default first."""
    if mode is None:
        return (str(PLANAR), str(TOKEN_MINOR), str(INLINE))
    return (str(default(mode)), *(each for each in _of(mode) if each != str(default(mode))))


def _unknown(subject: str, mode: Mode | None, found: str) -> UsageError:
    required = f"one of {', '.join(known(mode))}"
    return UsageError(wrong(subject, required=required, found=found, remedy="leave it out for the mode's own"))


def default(mode: Mode) -> LayoutId:
    """Return the layout that a mode has where nobody asks for another."""
    return TOKEN_MINOR if mode is Mode.INT4_PER_TOKEN_HEAD else PLANAR


def _of(mode: Mode) -> tuple[str, ...]:
    return known() if mode is Mode.INT4_PER_TOKEN_HEAD else (str(PLANAR), str(INLINE))


@dataclass(frozen=True, slots=True)
class Plane:
    """Byte strides of one plane (K rows, V rows, K scales or V scales)."""

    offset: int
    """Bytes from the start of the cache's buffer to the first element."""
    page: int
    slot: int
    head: int
    value: int | None = None
    """From one stored value of a row to the next; None where they are adjacent."""


@dataclass(frozen=True, slots=True)
class CacheStrides:
    """The four planes of a cache; scale planes are None where the mode has no row scales."""

    k: Plane
    v: Plane
    k_scale: Plane | None
    v_scale: Plane | None
    page_bytes: int
    """Bytes from one page to the next."""


def strides(
    layout: LayoutId, mode: Mode, head_size: int, kv_heads: int, page: int, dtype: str = "bf16"
) -> CacheStrides:
    """Return the planes of a densely allocated cache.

    `page` is the number of token slots of a page, `dtype` the model's (it matters for `none` in float32 only).
    Raises UsageError for a layout that is not known for the mode.
    """
    if str(layout) not in known(mode):
        raise _unknown(f"layout of {mode}", mode, str(layout))
    row = mode.row_bytes(head_size, dtype)
    scale = SCALE_BYTES if mode.has_scales else 0
    if layout.family == PLANAR.family:
        run = 2 * page * (row + scale)
        total = kv_heads * run

        def rows(offset: int) -> Plane:
            return Plane(offset, total, row, run)

        def scales(offset: int) -> Plane | None:
            return Plane(offset, total, SCALE_BYTES, run) if scale else None

        values = Plane(page * row, total, 1, run, page) if layout == TOKEN_MINOR else rows(page * row)
        return CacheStrides(rows(0), values, scales(2 * page * row), scales(2 * page * row + page * scale), total)

    content = 2 * (row + scale)
    slot, total = kv_heads * content, page * kv_heads * content

    def at(offset: int) -> Plane:
        return Plane(offset, total, slot, content)

    return CacheStrides(
        at(0), at(row + scale), at(row) if scale else None, at(2 * row + scale) if scale else None, total
    )
