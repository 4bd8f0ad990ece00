"""Public reports as tests: head size 96, neighbours of strided rows, padding slots, empty sequences."""

from __future__ import annotations

import pytest
import torch

from kvreg import oracle
from kvreg.core.layouts import known
from kvreg.core.modes import Mode
from kvreg.gate.run import reference_of
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan
from kvreg.testing import build
from kvreg_cpu import int4
from kvreg_cpu.rotation import rotate

MODES = tuple(Mode)


def bytes_of_slot(layout: str, mode: str, head_size: int, kv_heads: int, page: int, slot: int) -> set[int]:
    """Every byte of one slot, worked out from the drawings of the layouts."""
    row = {"none": 2 * head_size, "int4_per_token_head": head_size // 2}.get(mode, head_size)
    scale = 4 if mode.endswith("_per_token_head") else 0
    at_page, at = divmod(slot, page)
    found: set[int] = set()
    for head in range(kv_heads):
        if layout != "inline.1":
            run = (at_page * kv_heads + head) * 2 * page * (row + scale)
            values = run + page * row
            k_bytes = range(run + at * row, run + (at + 1) * row)
            v_bytes = range(values + at * row, values + (at + 1) * row)
            if layout == "planar.2":
                v_bytes = range(values + at, values + at + row * page, page)
            scales = (run + 2 * page * row + at * scale, run + 2 * page * row + page * scale + at * scale)
        else:
            content = ((at_page * page + at) * kv_heads + head) * 2 * (row + scale)
            k_bytes = range(content, content + row)
            v_bytes = range(content + row + scale, content + 2 * row + scale)
            scales = (content + row, content + 2 * row + scale)
        found.update(k_bytes, v_bytes)
        for start in scales:
            found.update(range(start, start + scale))
    return found


def test_head_96_is_right_on_200_seeds(cache_for, attend_batch):
    batch = build(
        "decode", head_size=96, kv_heads=8, group=4, page=16, contexts=(64,), inputs=("normal",), seeds=range(200)
    )
    cache = cache_for("cpu", "int4_per_token_head", batch)

    write(cache, batch.k, batch.v, batch.slots)
    out = attend_batch(cache, batch).double()

    assert cache.selection.result.format.rotation_block == 32
    right = reference_of(batch, cache.view).out
    torch.testing.assert_close(out, right, atol=5e-2, rtol=5e-2)
    correlation = [
        torch.corrcoef(torch.stack((o.flatten(), r.flatten())))[0, 1] for o, r in zip(out, right, strict=True)
    ]
    assert min(correlation) >= 0.99


@pytest.mark.parametrize(("head_size", "block"), [(96, 32), (128, 128), (40, 8), (80, 16), (512, 512)])
def test_rotation_is_block_diagonal_with_the_largest_block(head_size, block, select):
    assert select("cpu", head_size=head_size).result.format.rotation_block == block
    x = torch.randn(200, head_size).bfloat16()

    found = rotate(x.float())

    right = oracle.rotate(x.double(), head_size)
    assert ((found.double() - right).norm(dim=-1) / right.norm(dim=-1)).max() <= 1e-5
    rounded = found.bfloat16().double()
    assert ((rounded - right).norm(dim=-1) / right.norm(dim=-1)).max() <= 4e-3


@pytest.mark.parametrize(("low", "high", "most"), [(-0.5, 0.5, 1 / 30), (5.0, 6.0, 0.2)])
def test_the_int4_step_is_that_of_the_rows_own_range_with_zero(low, high, most):
    rows = torch.empty(300, 96).uniform_(low, high)

    back = int4.dequantize(*int4.quantize(rows))

    assert (back - rows).abs().max() <= most * (1 + 1e-5)


def test_a_row_that_is_no_number_is_stored_as_such_whatever_the_processor_casts_it_to():
    rows = torch.randn(3, 32)
    rows[0, 5], rows[1, 5], rows[2, 5] = torch.nan, torch.inf, -torch.inf

    packed, scales = int4.quantize(rows)

    assert not scales.isfinite().any()
    assert scales[0].view(torch.int32) == 0x7FC00000
    assert not packed[0].any()
    assert not int4.dequantize(packed, scales).isfinite().any()


@pytest.mark.parametrize("head_size", [96, 40])
@pytest.mark.parametrize("mode", MODES)
def test_neighbours_of_strided_rows_do_not_enter(backend, mode, head_size, allocate):
    plain, strided = (allocate(backend, mode, head_size) for _ in range(2))
    k, v = torch.randn(2, 7, 2, head_size).bfloat16()
    wide = torch.full((2, 9, 4, head_size + 24), torch.nan, dtype=torch.bfloat16)
    wide[..., ::2] = 1e30
    inner = wide[:, 1:8, 1:3, 8 : 8 + head_size]
    inner[0], inner[1] = k, v
    slots = torch.tensor([3, 0, 60, 17, 31, 32, 5])

    write(plain, k, v, slots)
    write(strided, inner[0], inner[1], slots)

    assert torch.equal(plain.buffer, strided.buffer)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("mode", "layout"), [(mode, layout) for mode in MODES for layout in known(mode)])
def test_padding_slots_leave_every_other_byte_alone(backend, mode, layout, dtype, allocate):
    k, v = torch.randn(2, 8, 2, 96).bfloat16()
    slots = torch.tensor([0, 17, -1, 33, -1], dtype=dtype)
    written = set().union(*(bytes_of_slot(layout, mode, 96, 2, 16, slot) for slot in (0, 17, 33)))
    caches = []
    for fill in (0xA5, 0x5A):
        cache = allocate(backend, mode, 96, layout=layout)
        cache.buffer.fill_(fill)
        write(cache, k, v, slots)
        caches.append(cache.buffer)

    # What was written is the same over both fills; what was not is each fill itself.
    same = (caches[0] == caches[1]).nonzero().flatten().tolist()
    assert set(same) == written
    untouched = sorted(set(range(len(caches[0]))) - written)
    assert (caches[0][untouched] == 0xA5).all()
    assert (caches[1][untouched] == 0x5A).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_write_of_nothing_but_padding_stores_nothing(backend, mode, allocate):
    cache = allocate(backend, mode, 80)
    cache.buffer.fill_(0xA5)
    k, v = torch.randn(2, 3, 2, 80).bfloat16()

    write(cache, k, v, torch.tensor([-1, -1]))

    assert (cache.buffer == 0xA5).all()


@pytest.mark.parametrize("mode", MODES)
def test_empty_sequences_give_zeros_and_change_no_other(backend, mode, allocate):
    cache = allocate(backend, mode, 96)
    k, v = torch.randn(2, 12, 2, 96).bfloat16()
    write(cache, k, v, torch.cat((torch.arange(5), 16 + torch.arange(7))))
    q = torch.randn(4, 8, 96).bfloat16()

    def run(q: torch.Tensor, table: list[list[int]], lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        seq_lens = torch.tensor(lengths, dtype=torch.int32)
        cu_q = torch.arange(len(lengths) + 1, dtype=torch.int32)
        made = plan(cache, cu_q, seq_lens, max_context=16)
        out = torch.full(q.shape, torch.nan, dtype=q.dtype)
        return attend(q, cache, torch.tensor(table, dtype=torch.int32), seq_lens, cu_q, made, out=out, return_lse=True)

    four, four_lse = run(q, [[0], [3], [1], [2]], [5, 0, 7, 0])
    two, two_lse = run(q[::2], [[0], [1]], [5, 7])

    assert (four[1::2] == 0).all()
    assert (four_lse[1::2] == -torch.inf).all()
    assert torch.equal(four[::2], two)
    assert torch.equal(four_lse[::2], two_lse)
    assert two.isfinite().all()
    assert two.any(-1).all()


@pytest.mark.parametrize(
    ("backend", "mode", "kv_heads"),
    [
        *(("cpu", mode, 4) for mode in MODES),
        *(("triton", mode, 1) for mode in (Mode.INT8_PER_TOKEN_HEAD, Mode.INT4_PER_TOKEN_HEAD)),
    ],
    indirect=["backend"],
)
@pytest.mark.parametrize("page", [16, 528, 544])
def test_group_7_and_page_544(backend, mode, kv_heads, page, cache_for, attend_batch):
    batch = build(
        "decode", head_size=128, group=7, kv_heads=kv_heads, page=page, contexts=(1, 17, 1000), inputs=("normal",)
    )  # fmt: skip
    cache: KVCache = cache_for(backend, mode.value, batch)
    write(cache, batch.k, batch.v, batch.slots)

    out = attend_batch(cache, batch)

    right = reference_of(batch, cache.view).out
    assert ((out.double() - right).norm(dim=-1) / right.norm(dim=-1)).max() < 5e-3
