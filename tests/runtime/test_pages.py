"""Copying pages, reading rows back, and moving a cache between layouts."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch

from kvreg import oracle
from kvreg.core.layouts import CacheStrides, Plane, known
from kvreg.core.modes import Mode
from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import convert, copy_pages, dequantize

MODES = tuple(Mode)
STORED = [(str(mode), layout) for mode in MODES for layout in known(mode)]
"""Every mode in each of its layouts."""


@pytest.fixture
def filled(allocate):
    """Return a function that makes a cache of six pages of random bytes, NaN scales included."""

    def make(mode: str, layout: str | None = None, **keywords) -> KVCache:
        cache = allocate("cpu", mode, 72, pages=6, layout=layout, **keywords)
        cache.buffer.copy_(torch.randint(0, 256, cache.buffer.shape))
        return cache

    return make


def page_bytes(cache: KVCache) -> list[torch.Tensor]:
    """The bytes of each page of a dense cache."""
    return list(cache.buffer.clone().view(cache.pages, -1))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ([0, 1, 2], [3, 4, 5]),
        ([0, 1, 2, 3], [1, 2, 3, 4]),
        ([4, 3, 2, 1], [3, 2, 1, 0]),
        ([0, 5], [5, 0]),
        ([2, 2, 2], [0, 2, 4]),
        ([], []),
    ],
    ids=["apart", "up", "down", "exchange", "one to many", "none"],
)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("mode", "layout"), STORED)
def test_pages_are_copied_as_if_all_were_read_first(mode, layout, index, src, dst, filled):
    cache = filled(mode, layout)
    before = page_bytes(cache)

    copy_pages(cache, torch.tensor(src, dtype=index), torch.tensor(dst, dtype=index))

    right = list(before)
    for source, target in zip(src, dst, strict=True):
        right[target] = before[source]
    assert torch.equal(torch.stack(page_bytes(cache)), torch.stack(right))


def test_copying_leaves_the_bytes_between_foreign_planes_alone(select):
    selection = select(head_size=64, kv_heads=1, q_heads=4, layout="planar.1")
    # 100 bytes a slot: K row, K scale, 16 bytes of somebody else, V row, V scale, 12 more.
    planes = [Plane(offset, 1600, 100, 100) for offset in (0, 52, 32, 84)]
    tensor = torch.randint(0, 256, (3 * 1600,), dtype=torch.uint8)
    cache = KVCache.from_buffer(selection, tensor, CacheStrides(*planes, 1600), pages=3)
    before = tensor.clone().view(3, 16, 100)

    copy_pages(cache, torch.tensor([0]), torch.tensor([2]))

    after = tensor.view(3, 16, 100)
    foreign = torch.zeros(100, dtype=torch.bool)
    foreign[36:52] = foreign[88:] = True
    assert torch.equal(after[2][:, foreign], before[2][:, foreign])
    assert torch.equal(after[2][:, ~foreign], before[0][:, ~foreign])
    assert torch.equal(after[:2], before[:2])


def triton_version() -> tuple[int, int]:
    major, minor, *_ = version("triton").split(".")
    return int(major), int(minor)


@pytest.mark.parametrize("head_size", [40, 64, 96, 112, 512])
@pytest.mark.parametrize(("backend", "mode", "fp8", "lost", "layout"), [(*row, layout) for row in (
    ("cpu", "int4_per_token_head", None, 0.15),
    ("cpu", "int8_per_token_head", None, 0.01),
    ("cpu", "fp8_per_token_head", "e4m3fn", 0.04),
    ("cpu", "fp8_per_token_head", "e4m3fnuz", 0.04),
    ("cpu", "fp8_per_tensor", "e4m3fn", 0.04),
    ("cpu", "fp8_per_tensor", "e4m3fnuz", 0.04),
    ("triton", "int4_per_token_head", None, 0.15),
    ("triton", "int8_per_token_head", None, 0.01),
    ("triton", "fp8_per_token_head", "e4m3fnuz", 0.04),
    ("triton", "fp8_per_tensor", "e4m3fn", 0.04),
) for layout in known(Mode(row[1]))], indirect=["backend"])  # fmt: skip
def test_quantized_rows_read_back_as_the_oracle_reads_them(backend, mode, fp8, lost, layout, head_size, select):
    if (backend, fp8) == ("triton", "e4m3fnuz") and triton_version() < (3, 9):
        pytest.skip("no e4m3fnuz in this Triton's interpreter; 3.9 has it")
    scales = (0.75, 0.3) if mode == "fp8_per_tensor" else None
    selection = select(backend, mode, head_size, layout=layout, fp8=fp8)
    cache = KVCache.allocate(selection, 4, device="cpu", tensor_scales=scales)
    k, v = torch.randn(2, 5, 2, head_size).bfloat16()
    slots = torch.tensor([63, 0, 17, 16, 31])
    write(cache, k, v, slots)

    found = dequantize(cache, slots)

    for rows, right, given in zip(found, oracle.dequantize(cache.view, slots), (k, v), strict=True):
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows.double(), right, atol=1e-5, rtol=1e-5)
        assert ((rows - given).norm(dim=-1) / given.float().norm(dim=-1)).max() < lost


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("layout", known(Mode.NONE))
def test_unquantized_rows_read_back_exactly(layout, dtype, allocate):
    cache = allocate("cpu", "none", 40, layout=layout, dtype=dtype)
    k, v = torch.randn(2, 3, 2, 40).to(cache.dtype)

    write(cache, k, v, torch.tensor([5, 40, 41]))
    found = dequantize(cache, torch.tensor([41, -1, 5, 40, 5], dtype=torch.int32))

    for rows, given in zip(found, (k, v), strict=True):
        assert torch.equal(rows[[2, 3, 0, 4]], given[[0, 1, 2, 0]].float())
        assert not rows[1].any()


@pytest.mark.parametrize("mode", MODES)
def test_a_negative_slot_reads_as_zeros_even_over_dirt(mode, filled):
    cache = filled(mode)
    cache.buffer.fill_(0xFF)

    k, v = dequantize(cache, torch.tensor([-1, 3, -7]))

    assert not k[[0, 2]].any()
    assert not v[[0, 2]].any()
    assert k[1].isnan().all()


@pytest.mark.parametrize(
    ("mode", "here", "there"), [(*stored, to) for stored in STORED for to in known(Mode(stored[0]))]
)
def test_converting_there_and_back_gives_the_same_bytes(mode, here, there, filled):
    cache = filled(mode, here, kv_heads=3, q_heads=3)
    before = cache.buffer.clone()

    moved = convert(cache, there)
    back = convert(moved, here)

    assert str(moved.layout) == there == str(moved.selection.result.layout)
    assert moved.selection.result.format.layout_id == there
    assert moved.view.tensor_scales is cache.view.tensor_scales
    assert torch.equal(back.buffer, before)
    assert torch.equal(cache.buffer, before)
    assert moved.buffer.data_ptr() != cache.buffer.data_ptr()
    for one, other in zip(dequantize(cache, torch.arange(96)), dequantize(moved, torch.arange(96)), strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert (here == there) == torch.equal(moved.buffer, before)


def test_foreign_memory_converts_to_a_layout_of_our_own(select):
    selection = select(head_size=64, kv_heads=1, q_heads=4, layout="planar.1")
    planes = [Plane(offset, 1600, 100, 100) for offset in (0, 52, 32, 84)]
    tensor = torch.randint(0, 256, (3 * 1600,), dtype=torch.uint8)
    cache = KVCache.from_buffer(selection, tensor, CacheStrides(*planes, 1600), pages=3)

    moved = convert(cache, "inline.1")

    assert moved.buffer.numel() == 3 * 16 * 72
    kept = torch.cat([torch.arange(36), 52 + torch.arange(36)])
    assert torch.equal(moved.buffer.view(3, 16, 72), tensor.view(3, 16, 100)[:, :, kept])
