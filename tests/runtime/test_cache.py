"""Making caches: new memory, foreign memory, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kvreg
from kvreg.core.errors import (
    CallError,
    DeviceUnavailable,
    OutOfMemory,
    Refused,
    WrongCache,
    WrongDevice,
    WrongDtype,
    WrongShape,
)
from kvreg.core.layouts import INLINE, PLANAR, TOKEN_MINOR, CacheStrides, Plane, known, strides
from kvreg.core.modes import Mode
from kvreg.runtime.attention import write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.geometry import parse
from kvreg.runtime.pages import dequantize

INT4 = Mode.INT4_PER_TOKEN_HEAD
SLOTS = torch.tensor([0, 5, 16, 47])


def fill(cache: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Write four rows and return what the cache says they are."""
    torch.manual_seed(1)
    shape = (4, cache.kind.kv_heads, cache.kind.head_size)
    write(cache, *torch.randn(2, *shape).to(cache.dtype), SLOTS)
    return dequantize(cache, SLOTS)


@pytest.mark.parametrize(("mode", "dtype", "bytes_a_token", "layout"), [(*row, layout) for row in (
    ("int4_per_token_head", "bf16", 2 * (20 + 4)),
    ("int4_per_token_head", "fp32", 2 * (20 + 4)),
    ("int8_per_token_head", "bf16", 2 * (40 + 4)),
    ("fp8_per_token_head", "fp32", 2 * (40 + 4)),
    ("fp8_per_tensor", "bf16", 2 * 40),
    ("none", "fp16", 2 * 80),
    ("none", "fp32", 2 * 160),
) for layout in known(Mode(row[0]))])  # fmt: skip
def test_allocated_memory_is_zero_and_of_the_size_that_select_names(mode, dtype, bytes_a_token, layout, select):
    selection = select("cpu", mode, 40, dtype=dtype, layout=layout, kv_heads=3, q_heads=3)

    cache = KVCache.allocate(selection, 5)

    assert selection.result.bytes_per_token_head == bytes_a_token
    assert cache.buffer.numel() == 5 * 16 * 3 * bytes_a_token
    assert not cache.buffer.any()
    assert (cache.pages, cache.slots, str(cache.layout), cache.mode) == (5, 80, layout, mode)
    assert (
        cache.view.k.dtype
        == cache.view.v.dtype
        == {
            "int4_per_token_head": torch.uint8,
            "int8_per_token_head": torch.int8,
            "fp8_per_token_head": torch.float8_e4m3fn,
            "fp8_per_tensor": torch.float8_e4m3fn,
        }.get(mode, cache.dtype)
    )
    assert (cache.view.k_scale is not None) == mode.endswith("token_head")
    k, v = dequantize(cache, torch.arange(80))
    assert not k.any()
    assert not v.any()


def test_memory_made_under_inference_mode_can_be_written_outside(select):
    with torch.inference_mode():
        cache = KVCache.allocate(select(), 3)

    k, _ = fill(cache)

    assert k.any()


def test_rows_that_require_gradients_leave_none_in_the_cache(select):
    cache = KVCache.allocate(select("cpu", "none"), 3)
    k = torch.randn(2, 2, 96).bfloat16().requires_grad_()

    write(cache, k, k, torch.tensor([0, 1]))

    assert not cache.buffer.requires_grad
    assert not cache.view.k.requires_grad
    assert cache.view.k.grad_fn is None


def test_scales_of_a_tensor_are_one_unless_they_are_given(select):
    selection = select("cpu", "fp8_per_tensor")

    assert KVCache.allocate(selection, 1).view.tensor_scales.tolist() == [1.0, 1.0]
    assert KVCache.allocate(selection, 1, tensor_scales=(0.5, 2)).view.tensor_scales.tolist() == [0.5, 2.0]
    buffer = KVCache.allocate(selection, 1).buffer
    assert KVCache.from_buffer(selection, buffer, tensor_scales=[3.0, 3.0]).view.tensor_scales.tolist() == [3.0, 3.0]
    for mode in ("none", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head"):
        assert KVCache.allocate(select("cpu", mode), 1).view.tensor_scales is None


def test_a_tensor_of_scales_is_shared_with_its_owner(backend, select):
    scales = torch.tensor([1.0, 1.0])
    cache = KVCache.allocate(select(backend, "fp8_per_tensor"), 3, device="cpu", tensor_scales=scales)
    scales.copy_(torch.tensor([4.0, 0.25]))
    k, v = torch.ones(2, 1, 2, 96).bfloat16()

    write(cache, k, v, torch.tensor([5]))

    assert (cache.view.k[0, 5].float() == 0.25).all()
    assert (cache.view.v[0, 5].float() == 4.0).all()
    assert all((rows == 1).all() for rows in dequantize(cache, torch.tensor([5])))
    scales[1] = 1.0
    assert (dequantize(cache, torch.tensor([5]))[1] == 4.0).all()


def test_scales_made_under_inference_mode_can_be_set_outside(select):
    with torch.inference_mode():
        cache = KVCache.allocate(select("cpu", "fp8_per_tensor"), 1)

    cache.view.tensor_scales.fill_(2.0)

    assert cache.view.tensor_scales.tolist() == [2.0, 2.0]


def test_the_fp8_type_is_the_selections(select):
    cache = KVCache.allocate(select("cpu", "fp8_per_token_head", fp8="e4m3fnuz"), 1)

    assert cache.view.k.dtype == torch.float8_e4m3fnuz
    assert cache.kind.fp8 == "e4m3fnuz"


def test_two_planes_never_share_a_byte_and_fill_the_buffer(select):
    for layout in known(INT4):
        cache = KVCache.allocate(select("cpu", head_size=72, layout=layout, kv_heads=3, q_heads=3), 2)
        counts = torch.zeros_like(cache.buffer)
        for plane in (cache.view.k, cache.view.v, cache.view.k_scale, cache.view.v_scale):
            width, step = (plane.shape[3], plane.stride(3)) if plane.dim() == 4 else (plane.element_size(), 1)
            marks = torch.as_strided(
                counts,
                (*plane.shape[:3], width),
                (*(step * plane.element_size() for step in plane.stride()[:3]), step),
                plane.storage_offset() * plane.element_size(),
            )
            marks += 1
        assert (counts == 1).all()


@pytest.mark.parametrize(
    ("head_size", "layout", "mode", "alignment"),
    [
        (128, "planar.1", "int4_per_token_head", 16),
        (96, "planar.1", "int4_per_token_head", 16),
        (72, "planar.1", "int4_per_token_head", 4),
        (72, "planar.2", "int4_per_token_head", 4),
        (96, "planar.2", "int4_per_token_head", 16),
        (128, "inline.1", "int4_per_token_head", 4),
        (40, "inline.1", "none", 16),
        (48, "planar.1", "int8_per_token_head", 16),
        (48, "inline.1", "fp8_per_token_head", 4),
        (40, "inline.1", "fp8_per_tensor", 8),
    ],
)
def test_the_view_says_what_divides_every_row_address(head_size, layout, mode, alignment, select):
    cache = KVCache.allocate(select("cpu", mode, head_size, layout=layout), 3)

    view = cache.view

    assert view.alignment == alignment
    # Where tokens are adjacent, a load takes those of one byte of the row, from the first of a page on.
    v = view.v.transpose(1, 3) if layout == "planar.2" else view.v
    addresses = [
        plane[p, s, h].data_ptr()
        for plane in (view.k, v)
        for p in range(3)
        for s in range(plane.shape[1])
        for h in (0, 1)
    ]
    assert all(address % alignment == 0 for address in addresses)
    assert alignment >= view.k.element_size()


@pytest.mark.parametrize("layout", known(INT4))
def test_a_buffer_inside_a_larger_one_is_read_from_its_offset(layout, select):
    selection = select(layout=layout)
    dense = KVCache.allocate(selection, 3)
    whole = torch.full((dense.buffer.numel() + 100,), 0xA5, dtype=torch.uint8)

    cache = KVCache.from_buffer(selection, whole[36 : 36 + dense.buffer.numel()])
    found, right = fill(cache), fill(dense)

    assert cache.pages == 3
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    assert (whole[:36] == 0xA5).all()
    assert (whole[36 + dense.buffer.numel() :] == 0xA5).all()
    assert cache.buffer.data_ptr() == whole.data_ptr() + 36


@pytest.mark.parametrize("given", [False, True], ids=["dense", "by strides"])
def test_memory_behind_the_tensor_is_not_taken_even_if_the_storage_has_it(given, select):
    selection = select(layout="inline.1")
    size = KVCache.allocate(selection, 1).buffer.numel()
    tensor = torch.zeros(10 * size, dtype=torch.uint8)[: 2 * size + 8]

    cache = KVCache.from_buffer(selection, tensor, strides(INLINE, INT4, 96, 2, 16) if given else None)

    assert cache.pages == 2
    assert cache.buffer.numel() == 2 * size + 8


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bfloat16, torch.float32])
def test_rows_of_padded_pages_are_read_by_their_distance(dtype, select):
    selection = select()
    dense = KVCache.allocate(selection, 3)
    item = dtype.itemsize
    page = dense.buffer.numel() // 3
    whole = torch.zeros((3, page // item + 64 // item), dtype=dtype)
    whole.view(torch.uint8).fill_(0xA5)

    cache = KVCache.from_buffer(selection, whole[:, : page // item])
    found, right = fill(cache), fill(dense)

    assert cache.pages == 3
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    padding = whole.view(torch.uint8)[:, page:]
    assert (padding == 0xA5).all()


def separate_planes(pages: int, kv_heads: int, head_size: int, page: int, gap: int = 0) -> tuple[CacheStrides, int]:
    """K rows of all pages, then V rows, K scales, V scales: scales decoupled from rows, as some engines keep them."""
    row = head_size // 2
    rows, scales = pages * page * kv_heads * row, pages * page * kv_heads * 4
    at = [gap, gap + rows, gap + 2 * rows, gap + 2 * rows + scales]
    places = [Plane(start, page * kv_heads * row, kv_heads * row, row) for start in at[:2]]
    places += [Plane(start, page * kv_heads * 4, kv_heads * 4, 4) for start in at[2:]]
    return CacheStrides(*places, page * kv_heads * row), gap + 2 * (rows + scales)


def test_foreign_strides_hold_the_same_rows(select):
    selection = select(head_size=80, kv_heads=3, q_heads=3, layout="planar.1")
    planes, size = separate_planes(4, 3, 80, 16, gap=8)
    dense = KVCache.allocate(selection, 4)

    cache = KVCache.from_buffer(selection, torch.zeros(size, dtype=torch.uint8), planes)

    assert cache.pages == 4
    assert all(torch.equal(a, b) for a, b in zip(fill(cache), fill(dense), strict=True))


def tokens_adjacent(gap: int) -> CacheStrides:
    """planar.2 of head size 96 and 2 KV heads with `gap` bytes behind each byte's 16 tokens of V."""
    dense = strides(TOKEN_MINOR, INT4, 96, 2, 16)
    run = dense.k.head + 48 * gap

    def moved(plane: Plane, further: int) -> Plane:
        return replace(plane, offset=plane.offset + further, page=2 * run, head=run)

    return CacheStrides(
        moved(dense.k, 0),
        replace(moved(dense.v, 0), value=16 + gap),
        moved(dense.k_scale, 48 * gap),
        moved(dense.v_scale, 48 * gap),
        2 * run,
    )


SPARSE = tokens_adjacent(gap=8)


def test_foreign_strides_of_adjacent_tokens_hold_the_same_rows_and_leave_the_gaps_alone(select):
    selection = select(layout="planar.2")
    dense = KVCache.allocate(selection, 3)
    tensor = torch.full((3 * SPARSE.page_bytes,), 0xA5, dtype=torch.uint8)

    cache = KVCache.from_buffer(selection, tensor, SPARSE)

    assert cache.pages == 3
    assert cache.view.v.stride()[1:] == (1, SPARSE.k.head, 24)
    assert all(torch.equal(a, b) for a, b in zip(fill(cache), fill(dense), strict=True))
    gaps = tensor.view(6, -1)[:, 16 * 48 : 16 * 48 + 24 * 48].view(6, 48, 24)[..., 16:]
    assert (gaps == 0xA5).all()


@pytest.mark.parametrize(
    ("layout", "given", "words"),
    [
        ("planar.2", strides(PLANAR, INT4, 96, 2, 16), "the tokens of a page adjacent, found slots 48 and values 1 "),
        ("planar.2", strides(INLINE, INT4, 96, 2, 16), "the tokens of a page adjacent, found slots 208 and values 1 "),
        (
            "planar.1",
            strides(TOKEN_MINOR, INT4, 96, 2, 16),
            "the values of a row adjacent, found slots 1 and values 16 ",
        ),
        (
            "inline.1",
            strides(TOKEN_MINOR, INT4, 96, 2, 16),
            "the values of a row adjacent, found slots 1 and values 16 ",
        ),
        (
            "planar.2",
            replace(SPARSE, v=replace(SPARSE.v, slot=2, value=48)),
            "a page adjacent, found slots 2 and values 48 ",
        ),
    ],
)
def test_v_whose_other_axis_is_adjacent_is_no_cache_of_this_layout(layout, given, words, select):
    """Kernels are compiled for one of the two; they would read the other as noise, or far outside of the buffer."""
    tensor = memory(1 << 16)

    with pytest.raises(WrongCache, match=rf"strides, V rows: required .*{words}bytes apart; .* as {layout} does"):
        KVCache.from_buffer(select(layout=layout), tensor, given)

    assert (tensor == 0xA5).all()


def test_bytes_of_a_row_further_apart_than_kernels_count_are_refused(select):
    dense = strides(TOKEN_MINOR, INT4, 96, 2, 16)
    far = replace(dense, v=replace(dense.v, value=1 << 26))

    with pytest.raises(WrongCache, match=r"V rows: required values of a row at most 2147483647 .* found 3154116608"):
        KVCache.from_buffer(select(layout="planar.2"), memory(1 << 12), far, pages=1)


def test_a_strided_tensor_is_no_obstacle_where_strides_are_given(select):
    """vLLM hands out [pages, heads, slots, content] over memory in the order pages, slots, heads, content."""
    selection = select(layout="inline.1", kv_heads=3, q_heads=3)
    memory = torch.zeros((4, 16, 3, 104), dtype=torch.uint8)
    handed = memory.transpose(1, 2)
    dense = KVCache.allocate(selection, 4)

    cache = KVCache.from_buffer(selection, handed, strides(INLINE, INT4, 96, 3, 16))

    assert cache.pages == 4
    assert all(torch.equal(a, b) for a, b in zip(fill(cache), fill(dense), strict=True))
    assert torch.equal(memory.flatten(), dense.buffer)
    with pytest.raises(WrongCache, match=r"contiguous.*strides=CacheStrides"):
        KVCache.from_buffer(selection, handed)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not INT4], ids=str)
def test_rows_of_8_and_16_bits_begin_at_even_bytes(select, mode):
    """Decode on NVIDIA cards reads two 8-bit codes as one value."""
    dense = strides(PLANAR, mode, 96, 2, 16)
    scales = (1.0, 1.0) if mode is Mode.FP8_PER_TENSOR else None
    moved = replace(dense, v=replace(dense.v, offset=dense.v.offset + 1))

    with pytest.raises(WrongCache, match=r"V rows: required address and strides that are multiples of 2 bytes, found"):
        KVCache.from_buffer(select(mode=mode, head_size=96), memory(40000), moved, pages=1, tensor_scales=scales)


DENSE = strides(INLINE, INT4, 96, 2, 16)
"""Pages of 3328 bytes; slots of 2 heads, 104 bytes each."""


def bent(**planes: dict[str, int]) -> dict[str, CacheStrides]:
    """The dense strides with some of them replaced."""
    return {"strides": replace(DENSE, **{name: replace(getattr(DENSE, name), **to) for name, to in planes.items()})}


WRONG_BUFFERS = {
    "not a tensor": (lambda: {"tensor": [0] * 5000}, WrongDtype, "buffer: torch.Tensor list"),
    "empty": (lambda: {"tensor": memory(0)}, WrongShape, "buffer: at least one page shape (0,)"),
    "too small": (lambda: {"tensor": memory(3327)}, WrongShape, "buffer: one page 3328 3327"),
    "too small for the pages": (lambda: {"tensor": memory(6656), "pages": 3}, WrongCache, "9928 3 pages 6656"),
    "more pages than bytes": (lambda: {"tensor": memory(6656), "pages": 2**70}, WrongShape, f"pages: 6656 {2**70}"),
    "strides of another type": (lambda: {"strides": DENSE.k}, WrongCache, "strides: a CacheStrides Plane"),
    "no K": (lambda: {"strides": replace(DENSE, k=None)}, WrongCache, "strides, k: a Plane None"),
    "scales a number": (lambda: {"strides": replace(DENSE, v_scale=5)}, WrongCache, "strides, v_scale: a Plane int"),
    "offset a float": (lambda: bent(k={"offset": 1.5}), WrongCache, "strides, k.offset: a whole number found 1.5"),
    "offset None": (lambda: bent(k_scale={"offset": None}), WrongCache, "k_scale.offset: a whole number None"),
    "slot a text": (lambda: bent(v={"slot": "4"}), WrongCache, "strides, v.slot: a whole number '4'"),
    "head a list": (lambda: bent(v={"head": []}), WrongCache, "strides, v.head: a whole number []"),
    "values a bool": (lambda: bent(k={"value": True}), WrongCache, "strides, k.value: a whole number True"),
    "page beyond 64 bits": (lambda: bent(k={"page": 2**63}), WrongCache, f"strides, k.page: 64 bits {2**63}"),
    "page bytes a text": (
        lambda: {"strides": replace(DENSE, page_bytes="3328")},
        WrongCache,
        "strides, page_bytes: a whole number '3328'",
    ),
    "no pages": (lambda: {"tensor": memory(6656), "pages": 0}, WrongShape, "pages: at least 1 found 0"),
    "pages a float": (lambda: {"tensor": memory(6656), "pages": 2.0}, CallError, "pages: int float"),
    "rows shorter than a page": (lambda: {"tensor": memory(8, 3000)}, WrongShape, "buffer: 3328 bytes 3000"),
    "rows that overlap": (
        lambda: {"tensor": memory(20000).as_strided((3, 3328), (3000, 1))},
        WrongCache,
        "sharing byte bytes of its own",
    ),
    "not contiguous": (lambda: {"tensor": memory(10, 10, 100)[:, ::2]}, WrongCache, "contiguous strides=CacheStrides"),
    "elsewhere": (lambda: {"tensor": memory(6656).to("meta")}, WrongDevice, "cpu meta"),
    "odd address": (lambda: {"tensor": memory(6700)[2:]}, WrongCache, "K scales: multiples of 4"),
    "odd scale": (lambda: bent(k_scale={"offset": 50}), WrongCache, "K scales: 4 bytes"),
    "odd head stride": (lambda: bent(v_scale={"head": 102}), WrongCache, "V scales: 4 102"),
    "negative stride": (lambda: bent(k={"slot": -208}), WrongCache, "K rows: negative -208"),
    "negative offset": (lambda: bent(v={"offset": -4}), WrongCache, "V rows: negative -4"),
    "no scales": (
        lambda: {"strides": replace(DENSE, k_scale=None)},
        WrongCache,
        "K scales: a plane None int4_per_token_head",
    ),
    "offset beyond the end": (lambda: bent(v={"offset": 7000}), WrongShape, "buffer: one page"),
    "heads beyond what 32 bits count": (
        lambda: {**bent(k={"head": 1 << 31}), "pages": 1},
        WrongCache,
        "K rows: heads at most 2147483647 elements 2147483648",
    ),
    "scales of slots beyond it": (
        lambda: {**bent(v_scale={"slot": 1 << 30}), "pages": 1},
        WrongCache,
        "V scales: slots of a page at most 2147483647 4026531840",
    ),
    "last row beyond the end": (
        lambda: {**bent(v={"offset": 5000}), "pages": 1},
        WrongCache,
        "V rows: 8272 1 pages 6656",
    ),
    "K on V": (lambda: {"strides": replace(DENSE, v=DENSE.k)}, WrongCache, "K rows and V rows sharing byte 0"),
    "V a byte into a scale": (lambda: bent(v={"offset": 51}), WrongCache, "K scales V rows sharing"),
    "heads on one another": (lambda: bent(k={"head": 0}), WrongCache, "K rows and K rows"),
    "slots on one another": (lambda: bent(v={"slot": 104}), WrongCache, "sharing byte"),
    "pages on one another": (lambda: {**bent(k={"page": 0}, v={"page": 0}), "pages": 2}, WrongCache, "sharing byte"),
    "a plane that runs into the next at its far end": (
        lambda: {"strides": separate_planes(40, 2, 96, 16)[0], "tensor": memory(3328 * 41), "pages": 41},
        WrongCache,
        "sharing byte",
    ),
}


def memory(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0xA5, dtype=torch.uint8)


@pytest.mark.parametrize("row", WRONG_BUFFERS)
def test_a_buffer_that_cannot_hold_the_cache_is_refused_untouched(row, select):
    make, error, words = WRONG_BUFFERS[row]
    arguments = {"tensor": memory(6656), **make()}
    tensor = arguments.pop("tensor")

    with pytest.raises(error) as caught:
        KVCache.from_buffer(select(layout="inline.1"), tensor, **arguments)

    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    missing = [word for word in words.split() if word not in str(caught.value)]
    assert not missing, f"{missing} not in {caught.value}"
    if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
        assert (tensor == 0xA5).all()


def test_scales_where_the_mode_has_none_are_refused(select):
    with pytest.raises(WrongCache, match="K scales: required None"):
        KVCache.from_buffer(select("cpu", "none"), memory(1 << 16), DENSE)


@pytest.mark.parametrize(("pages", "error"), [(0, WrongShape), (-1, WrongShape), (2.5, CallError), (True, CallError)])
def test_a_number_of_pages_that_is_none_is_refused(pages, error, select):
    with pytest.raises(error, match="pages"):
        KVCache.allocate(select(), pages)


@pytest.mark.parametrize("pages", [2**40, 2**60, 2**70])
def test_a_cache_that_no_memory_holds_is_refused_with_its_bytes(pages, select):
    with pytest.raises(OutOfMemory) as caught:
        KVCache.allocate(select(layout="inline.1"), pages)

    assert f"memory: required {pages * 3328} bytes on cpu, {pages} pages of 3328, found no room" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_an_accepted_selection_of_one_mode_makes_a_cache(select):
    one = select()
    refused = replace(one.results[0], verdict="refused", reason="head_size: required 32, found 30; ask for 32")
    unfinished = replace(one.results[0], ops={})

    with pytest.raises(WrongCache, match="one mode, found int4_per_token_head, int4_per_token_head"):
        KVCache.allocate(replace(one, results=one.results * 2), 1)
    with pytest.raises(Refused, match="found 30"):
        KVCache.allocate(replace(one, results=(refused,)), 1)
    with pytest.raises(WrongCache, match="none for write, decode, prefill"):
        KVCache.allocate(replace(one, results=(unfinished,)), 1)
    with pytest.raises(WrongCache, match="a Selection, found dict"):
        KVCache.allocate({}, 1)


def test_a_cache_lies_on_the_platform_that_was_selected_for(select, monkeypatch):
    with pytest.raises(WrongDevice, match="memory on cpu, as selected for cpu, found meta"):
        KVCache.allocate(select(), 1, device="meta")
    with pytest.raises(WrongDevice, match="a torch device, found 'gpu'"):
        KVCache.allocate(select(), 1, device="gpu")
    assert KVCache.allocate(select("triton"), 1).device.type == "cpu", "the interpreter takes tensors on the cpu"

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    with pytest.raises(WrongDevice, match="memory on cuda, as selected for h200, found cpu"):
        KVCache.allocate(select("triton"), 1, device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceUnavailable, match=r"a cuda card for h200.*kvreg doctor"):
            KVCache.allocate(select("triton"), 1)


def test_bf16_that_the_interpreter_multiplies_wrongly_is_refused_there(select):
    own, memory = kvreg.select("h200", "int4_per_token_head", 64), torch.zeros(1 << 20, dtype=torch.uint8)

    for make in (lambda: KVCache.allocate(own, 1), lambda: KVCache.from_buffer(own, memory)):
        with pytest.raises(
            WrongDtype, match=r"^cache: required dtype fp16 of cuda-int4-write@1 .*, found bf16; select"
        ):
            make()
    KVCache.allocate(kvreg.select("h200", "int4_per_token_head", 64, dtype="fp16"), 1)
    KVCache.allocate(select("triton", "int4_per_token_head", dtype="bf16"), 1)


def test_a_geometry_written_as_text_reads_back_the_same(select):
    for arguments in (*(("cpu", mode) for mode in Mode), ("triton", "int4_per_token_head")):
        geometry = KVCache.allocate(select(*arguments), 3, device="cpu").geometry
        assert parse(str(geometry)) == geometry
