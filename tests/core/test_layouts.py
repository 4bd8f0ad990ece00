"""Where each layout puts each byte, worked out element by element, and which mode has which layout."""

from collections import Counter

import pytest

from kvreg.core.errors import UsageError
from kvreg.core.layouts import INLINE, PLANAR, TOKEN_MINOR, LayoutId, default, known, strides
from kvreg.core.modes import SCALE_BYTES, Mode

INT4 = Mode.INT4_PER_TOKEN_HEAD
STORED = [(mode, LayoutId.parse(layout)) for mode in Mode for layout in known(mode)]


def bytes_of(plane, width, pages, page, heads):
    """Every byte of a plane whose elements are `width` bytes, once for each element that has it."""
    for p in range(pages):
        for slot in range(page):
            for head in range(heads):
                at = plane.offset + p * plane.page + slot * plane.slot + head * plane.head
                yield from (at + byte * (plane.value or 1) for byte in range(width))


@pytest.mark.parametrize(("mode", "layout"), STORED, ids=str)
@pytest.mark.parametrize(("head_size", "page"), [(40, 16), (96, 48)])
def test_every_byte_of_a_page_belongs_to_one_element(mode, layout, head_size, page):
    found = strides(layout, mode, head_size, 3, page)
    row = mode.row_bytes(head_size)
    planes = [(found.k, row), (found.v, row), (found.k_scale, SCALE_BYTES), (found.v_scale, SCALE_BYTES)]

    owners = Counter(at for plane, width in planes if plane for at in bytes_of(plane, width, 2, page, 3))

    assert set(owners.values()) == {1}
    assert sorted(owners) == list(range(2 * found.page_bytes))
    assert found.page_bytes == 3 * page * mode.bytes_per_token_head(head_size)


@pytest.mark.parametrize("page", [16, 48, 528])
@pytest.mark.parametrize("head_size", [40, 96, 512])
def test_planar_2_has_the_tokens_of_v_adjacent_and_the_bytes_of_a_row_a_page_apart(head_size, page):
    first, second = (strides(layout, INT4, head_size, 2, page) for layout in (PLANAR, TOKEN_MINOR))

    assert (second.v.slot, second.v.value) == (1, page)
    assert second.v.offset == first.v.offset == page * head_size // 2
    assert (second.k, second.k_scale, second.v_scale) == (first.k, first.k_scale, first.v_scale)
    assert (second.v.page, second.v.head, second.page_bytes) == (first.v.page, first.v.head, first.page_bytes)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not INT4])
def test_planar_2_is_for_int4_alone(mode):
    assert str(TOKEN_MINOR) not in known(mode)

    with pytest.raises(UsageError, match=rf"layout of {mode}: required one of planar\.1, inline\.1, found planar\.2;"):
        strides(TOKEN_MINOR, mode, 96, 2, 16)


@pytest.mark.parametrize("layout", ["planar.3", "inline.2", "tiled.1"])
def test_a_revision_that_nobody_drew_is_refused_by_every_mode(layout):
    for mode in Mode:
        required = f"layout of {mode}: required one of {', '.join(known(mode))}, found {layout};"
        with pytest.raises(UsageError, match=required):
            strides(LayoutId.parse(layout), mode, 96, 2, 16)


def test_a_mode_names_its_default_first_and_each_layout_once():
    assert {mode: str(default(mode)) for mode in Mode} == dict.fromkeys(Mode, "planar.1") | {INT4: "planar.2"}
    for mode in Mode:
        assert known(mode)[0] == str(default(mode))
        assert len(set(known(mode))) == len(known(mode))
    assert set(known()) == {layout for mode in Mode for layout in known(mode)} == {"planar.1", "planar.2", "inline.1"}
    assert str(INLINE) in known(INT4)
