"""The write of kvreg_triton.write_int4, bound by memory instead of instructions: see there for the format.

The same rotation, codes, zero points and scales; what differs is where values lie. Channel bits are called c0 (even or
odd) upwards. A matrix instruction spreads a product over 8 lines of 4 threads, and this kernel has it that

    c0 c1 c2, c5 and higher, one bit of 16 rows    stay within a thread
    c3 c4                                          tell the four threads of a row apart

which is how loads of 16 bytes a thread leave a row, so that between load and store no value changes threads:

    rotation    c0 c1 c3 c4 in a product with H of 16, exact (kvreg_cuda.unit_rotation says why); c2 in what a second
                product adds to it or takes from it; every other level adds and subtracts values of a thread
    range       a thread's values first, then those of four threads, or of eight
    by rows     (product x H) a thread has 8 neighbouring channels of a row: words of 4 bytes
    by tokens   (product H x) a thread has a byte of 4 neighbouring tokens: words for V that lies in `planar.2`

A code is one instruction: y * (1 / s) + (z + 1/2 + 2**22) toward zero has floor(y / s + z + 1/2) above the lowest bit
of its mantissa. No code needs a clamp, see `quantized`.

Longer than other modules: a kernel family stays in one file, so that a change stales the traces of this one alone.
"""

import triton
import triton.language as tl

from kvreg_cuda.launching import OverlappingWrite, let_dependents_start, wait_for_the_launch_before
from kvreg_triton.launch import INTERPRETED
from kvreg_triton.paging import aligned
from kvreg_triton.rotation import SIGN_WORDS

ON_CARD = tl.constexpr(not INTERPRETED)
"""The interpreter knows no PTX, and holds bf16 as integers and multiplies those: there products are of float32."""
LEAST_SCALE = tl.constexpr(1e-6)
SIDE = tl.constexpr(16)
"""Channels of a product: the depth of a matrix instruction of 16-bit values."""
SPAN = tl.constexpr(32)
"""Channels of a line as it is loaded: 16 bytes in each of 4 threads."""
RUN = tl.constexpr(4)
"""Tokens whose bytes of V make a word."""
SIXTEEN = tl.constexpr(16)
"""Tokens that lie in one page where their slots are an aligned group; pages are multiples of it."""
ODD_BITS = tl.constexpr(0x6996)
"""Bit n says whether n, of 0 to 15, has an odd number of bits."""
HALVES = tl.constexpr(4194304.0)
"""2**22: a float32 from here to twice this counts halves in its mantissa."""
HALVES_BITS = tl.constexpr(0x4A800000)
WITHIN = tl.constexpr(1.0 - 2.0**-20)
"""Brings 15 and a half, off by the roundings of a scale and its reciprocal (5 units of 2**-23), below that again."""


def _sign_pairs() -> tuple[int, ...]:
    """Return D as bits, 32 channels a word: channel 2p at bit p, channel 2p + 1 at bit 16 + p."""
    words = SIGN_WORDS.value
    return tuple(
        sum(((low | high << 16) >> c & 1) << (c % 2 * 16 + c // 2) for c in range(32))
        for low, high in zip(words[::2], words[1::2], strict=True)
    )


SIGN_PAIRS = tl.constexpr(_sign_pairs())


@triton.jit
def load_spans(x, row, n_rows, x_row, HEAD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Load 32 channels a line, (WIDTH / 32 * ROWS, 32): all rows' first ones, then their next. `row`: each line's."""
    channel = (tl.arange(0, WIDTH // SPAN * ROWS) // ROWS * SPAN)[:, None] + tl.arange(0, SPAN)[None, :]
    from_x = x + row.to(tl.int64) * x_row
    return tl.load(from_x[:, None] + channel, mask=(row < n_rows)[:, None] & (channel < HEAD), other=0.0)


@triton.jit
def turned(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Change the signs of x (WIDTH / 32 * ROWS, 32) by D, as bits: two neighbours take theirs from one word."""
    LINES: tl.constexpr = WIDTH // SPAN * ROWS
    span = tl.arange(0, LINES) // ROWS
    word = tl.full([LINES], SIGN_PAIRS[0], tl.uint32)
    for j in tl.static_range(1, (BLOCK + SPAN - 1) // SPAN):
        word = tl.where(span % (BLOCK // SPAN) == j, tl.full([LINES], SIGN_PAIRS[j], tl.uint32), word)
    if BLOCK == 16:
        word = (word & 0x00FF00FF) * 0x0101
    if BLOCK == 8:
        word = (word & 0x000F000F) * 0x1111
    channel = tl.arange(0, SPAN)
    by = (15 - channel // 2)[None, :].to(tl.uint32)
    if ON_CARD:
        # As PTX the shift stays one of 32 bits for two channels; LLVM would make two of 16 bits.
        word, by = tl.broadcast(word[:, None], by)
        minus = tl.inline_asm_elementwise(
            "shl.b32 $0, $1, $2;", "=r,r,r", [word, by], dtype=tl.uint32, is_pure=True, pack=1
        )
    else:
        minus = word[:, None] << by
    minus = minus & 0x80008000
    minus = tl.where((channel % 2 == 0)[None, :], minus, minus >> 16)
    if ON_CARD:
        return (x.to(tl.uint16, bitcast=True) ^ minus.to(tl.uint16)).to(x.dtype, bitcast=True)
    return tl.where((minus & 0x8000) != 0, -x, x)


@triton.jit
def hadamard_16(BLOCK: tl.constexpr, BY_ROWS: tl.constexpr):
    """Return H over the channel bits (c1, c4, c3, c0), highest first, as far as they lie in a block: (16, 16) float32.

    Not `BY_ROWS`: its rows are (c0, c4, c3, c1), so that a thread has the even and the odd channel of a byte.
    """
    i = tl.arange(0, SIDE)
    if not BY_ROWS:
        i = (i >> 3) | (i & 6) | ((i & 1) << 3)
    i = i[:, None]
    j = tl.arange(0, SIDE)[None, :]
    inside: tl.constexpr = 15 if BLOCK >= 32 else 11 if BLOCK == 16 else 9
    odd = (ODD_BITS >> (i & j & inside)) & 1
    return tl.where(((i ^ j) & ~inside) == 0, tl.where(odd == 0, 1.0, -1.0), 0.0)


@triton.jit
def level(y, OUTER: tl.constexpr, INNER: tl.constexpr):
    """Add and subtract the halves of the middle axis of y, taken as (OUTER, 2, INNER)."""
    a, b = tl.split(tl.permute(tl.reshape(y, [OUTER, 2, INNER]), (0, 2, 1)))
    return tl.permute(tl.join(a + b, a - b), (0, 2, 1))


@triton.jit
def rotated(
    x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, BY_ROWS: tl.constexpr
):
    """Return H (D x) of x (WIDTH / 32 * ROWS, 32) as (WIDTH / 16, ROWS, 16) float32.

    The first axis is the channel bits from c5 up and, lowest, c2; the last one is the rows of `hadamard_16`.
    With a and b the channels whose c2 is 0 and 1, that of c2 is H a + H b and H a - H b.
    """
    SPANS: tl.constexpr = WIDTH // SPAN
    h = hadamard_16(BLOCK, BY_ROWS)
    x = turned(x, ROWS, WIDTH, BLOCK)
    if ON_CARD:
        h = h.to(x.dtype)
    else:
        x = x.to(tl.float32)
    x = tl.reshape(x, [SPANS, ROWS, 4, 2, 2, 2])
    # Permuted in all its axes at once: of a matrix the compiler would make the transpose in shared memory.
    if BY_ROWS:
        a, b = tl.split(tl.permute(x, (0, 1, 4, 2, 5, 3)))
        a, b = tl.reshape(a, [SPANS * ROWS, SIDE]), tl.reshape(b, [SPANS * ROWS, SIDE])
        y = tl.dot(a, h, input_precision="ieee")
        sums = tl.dot(b, h, y, input_precision="ieee")
        differences = tl.dot(b, -h, y, input_precision="ieee")
    else:
        a, b = tl.split(tl.permute(x, (4, 2, 5, 0, 1, 3)))
        a, b = tl.reshape(a, [SIDE, SPANS * ROWS]), tl.reshape(b, [SIDE, SPANS * ROWS])
        y = tl.dot(h, a, input_precision="ieee")
        sums = tl.trans(tl.dot(h, b, y, input_precision="ieee"))
        differences = tl.trans(tl.dot(-h, b, y, input_precision="ieee"))
    y = tl.permute(tl.reshape(tl.join(sums, differences), [SPANS, ROWS * SIDE, 2]), (0, 2, 1))
    for j in tl.static_range(LEVELS - 5):
        y = level(y, SPANS // 2 >> j, (2 << j) * ROWS * SIDE)
    return tl.reshape(y, [SPANS * 2, ROWS, SIDE])


@triton.jit
def larger(a, b):
    """Return the larger, or NaN where one is: unlike tl.max, which drops it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    """Return the smaller, or NaN where one is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def range_of(y):
    """Return least and largest value of the rows of y (groups, rows, 16); of one with a NaN both are not finite."""
    if ON_CARD:
        low = tl.reduce(tl.reduce(y, 0, smaller), 1, smaller)
        high = tl.reduce(tl.reduce(y, 0, larger), 1, larger)
    else:  # which takes 25 times as long for a reduction that is not one of its own
        low = tl.min(tl.min(tl.where(y == y, y, -float("inf")), 0), 1)
        high = tl.max(tl.max(tl.where(y == y, y, float("inf")), 0), 1)
    return low, high


@triton.jit
def halves(y, factor, offset):
    """Return floor(2 (y * factor + offset)), of 0 to 63, in the 6 lowest bits of an int32; the product is exact."""
    if ON_CARD:
        toward_zero = tl.inline_asm_elementwise(
            "fma.rz.f32 $0, $1, $2, $3;",
            "=f,f,f,f", [y, factor, offset + HALVES], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
        return toward_zero.to(tl.int32, bitcast=True)
    exact = y.to(tl.float64) * factor.to(tl.float64) + offset.to(tl.float64)
    counted = tl.floor(tl.where(exact == exact, exact, 31.5) * 2.0)  # of NaN the card has every bit
    return counted.to(tl.int32) + HALVES_BITS


@triton.jit
def quantized(y):
    """Return codes of y (groups, rows, 16) as `halves` has them, the scale to store and which rows are broken (rows,).

    No code leaves 0 to 15: the zero point rounds up at a half, so that the least value has y / s + z + 1/2 > 0; where
    the largest one would get 16, the reciprocal is made a trifle smaller. A row with a value that is not finite is
    broken: its scale is NaN, and its codes mean nothing.
    """
    low, high = range_of(y)
    low = smaller(low, 0.0)
    high = larger(high, 0.0)
    broken = ~((high < float("inf")) & (low > -float("inf")))
    scale = tl.maximum((high - low) / 15.0, LEAST_SCALE)
    inverse = 1.0 / scale
    zero = tl.minimum(tl.floor(0.5 - low * inverse), 15.0)
    middle = zero + 0.5
    inverse = tl.where((halves(high, inverse, middle) & 32) != 0, inverse * WITHIN, inverse)
    codes = halves(y, inverse[None, :, None], middle[None, :, None])
    bits = (scale.to(tl.int32, bitcast=True) & ~15) | zero.to(tl.int32)
    return codes, tl.where(broken, float("nan"), bits.to(tl.float32, bitcast=True)), broken


@triton.jit
def together(codes):
    """Put the lowest bytes of the last two axes, of 2 each, in order into a word; ones above spoil no lower byte."""
    evens, odds = tl.split(codes)
    first, third = tl.split(evens)
    second, fourth = tl.split(odds)
    return (first & 0xFF) + ((fourth * 256 + third) * 256 + second) * 256


@triton.jit
def packed(even, odd):
    """Return bytes of two codes each, of 1 to 4 that lie in an int32 as `halves` has them."""
    return ((even >> 1) & 0x0F0F0F0F) | ((odd << 3) & ~0x0F0F0F0F)


@triton.jit
def page_of(slot, PAGE: tl.constexpr):
    """Return the page of slots and the place in it, int64; what a negative one gives is not to be used."""
    slot = slot.to(tl.uint64)
    return (slot // PAGE).to(tl.int64), (slot % PAGE).to(tl.int64)


@triton.jit
def write_by_rows(
    x, slots, n_rows, x_row, out, out_page, out_slot, scales, s_page, s_slot,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write ROWS tokens of one head whose bytes are adjacent."""
    first = tl.program_id(0) * ROWS
    line = tl.arange(0, WIDTH // SPAN * ROWS) % ROWS
    values = load_spans(x, first + line, n_rows, x_row, HEAD, ROWS, WIDTH)
    row = first + tl.arange(0, ROWS)
    slot = tl.load(slots + row, mask=row < n_rows, other=-1).to(tl.int64)
    page, place = page_of(slot, PAGE)
    codes, scale, broken = quantized(rotated(values, ROWS, WIDTH, BLOCK, LEVELS, True))
    tl.store(scales + page * s_page + place * s_slot, scale, mask=slot >= 0)

    # (c5 and higher, c2, row, c1, c4 c3, c0): bytes c2 c1 of a word.
    codes = tl.permute(tl.reshape(codes, [WIDTH // SPAN, 2, ROWS, 2, 4, 2]), (0, 2, 4, 1, 3, 5))
    even, odd = tl.split(codes)
    words = tl.where(broken[None, :, None], 0, packed(together(even), together(odd)))
    words = tl.reshape(tl.permute(words, (1, 0, 2)), [ROWS, WIDTH // 8])
    word = tl.arange(0, WIDTH // 8)
    mask = (slot >= 0)[:, None] & (word < HEAD // 8)[None, :]
    to = out + page * aligned(out_page, ALIGN) + place * aligned(out_slot, ALIGN)
    if ALIGN >= 4:
        tl.store(to.to(tl.pointer_type(tl.int32), bitcast=True)[:, None] + word[None, :], words, mask=mask)
    else:
        for j in tl.static_range(4):
            tl.store(to[:, None] + (word * 4 + j)[None, :], (words >> (8 * j)).to(tl.uint8), mask=mask)


@triton.jit
def store_sixteens(
    words, out, slots, out_page, HEAD: tl.constexpr, RUNS: tl.constexpr, WIDTH: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, V_BYTE: tl.constexpr,
):  # fmt: skip
    """Store words of 4 tokens (WIDTH / 2, RUNS) where every 16 tokens are an aligned 16 of a page."""
    run = tl.arange(0, RUNS)
    byte = tl.arange(0, WIDTH // 2)
    page, place = page_of(tl.load(slots + run // 4 * SIXTEEN).to(tl.int64), PAGE)
    to = out.to(tl.pointer_type(tl.int32), bitcast=True) + page * (out_page // ALIGN * (ALIGN // 4))
    to += place // 4 + run % 4
    tl.store(to[None, :] + (byte * (V_BYTE // 4))[:, None], words, mask=(byte < HEAD // 2)[:, None])


@triton.jit
def store_anywhere(
    words, out, slots, first, n_rows, out_page, HEAD: tl.constexpr, RUNS: tl.constexpr, WIDTH: tl.constexpr,
    PAGE: tl.constexpr, V_BYTE: tl.constexpr,
):  # fmt: skip
    """Store the bytes of words of 4 tokens (WIDTH / 2, RUNS) wherever their slots are."""
    byte = tl.arange(0, WIDTH // 2)
    for j in tl.static_range(RUN):
        row = first + tl.arange(0, RUNS) * RUN + j
        slot = tl.load(slots + row, mask=row < n_rows, other=-1).to(tl.int64)
        page, place = page_of(slot, PAGE)
        to = (out + page * out_page + place)[None, :] + (byte * V_BYTE)[:, None]
        tl.store(to, (words >> (8 * j)).to(tl.uint8), mask=(slot >= 0)[None, :] & (byte < HEAD // 2)[:, None])


@triton.jit
def token_of(column, ROWS: tl.constexpr):
    """Return which token a column of the product is.

    A thread has columns 2q and 2q + 1 of the first half of the columns and of the second: neighbours, four of them.
    """
    if ROWS < SIXTEEN:
        return column
    return column % (ROWS // 2) // 2 * RUN + column // (ROWS // 2) * 2 + column % 2


@triton.jit
def write_by_tokens(
    x, slots, n_rows, x_row, out, out_page, scales, s_page, s_slot,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, V_BYTE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write ROWS tokens of one head where neighbours in a page are adjacent, byte by byte."""
    first = tl.program_id(0) * ROWS
    line = tl.arange(0, WIDTH // SPAN * ROWS) % ROWS
    values = load_spans(x, first + token_of(line, ROWS), n_rows, x_row, HEAD, ROWS, WIDTH)
    token = token_of(tl.arange(0, ROWS), ROWS)
    row = first + token
    slot = tl.load(slots + row, mask=row < n_rows, other=-1).to(tl.int64)
    page, place = page_of(slot, PAGE)
    codes, scale, broken = quantized(rotated(values, ROWS, WIDTH, BLOCK, LEVELS, False))
    tl.store(scales + page * s_page + place * s_slot, scale, mask=slot >= 0)

    # (c5 and higher, c2, row, c0, c4 c3, c1): a byte's bits are c5 and higher, c4 c3, c2, c1.
    codes = tl.permute(tl.reshape(codes, [WIDTH // SPAN, 2, ROWS, 2, 4, 2]), (0, 4, 1, 5, 2, 3))
    even, odd = tl.split(codes)
    if ROWS < SIXTEEN:
        byte = tl.arange(0, WIDTH // 2)
        both = tl.where(broken[None, :], 0, tl.reshape(packed(even, odd), [WIDTH // 2, ROWS]))
        to = (out + page * out_page + place)[None, :] + (byte * V_BYTE)[:, None]
        tl.store(to, both.to(tl.uint8), mask=(slot >= 0)[None, :] & (byte < HEAD // 2)[:, None])
    else:
        RUNS: tl.constexpr = ROWS // RUN
        even = together(tl.permute(tl.reshape(even, [WIDTH // 2, 2, RUNS, 2]), (0, 2, 1, 3)))
        odd = together(tl.permute(tl.reshape(odd, [WIDTH // 2, 2, RUNS, 2]), (0, 2, 1, 3)))
        sound = together(tl.permute(tl.reshape(tl.where(broken, 0, 0xFF), [2, RUNS, 2]), (1, 0, 2)))
        words = packed(even, odd) & sound[None, :]
        start = tl.load(slots + row - token % SIXTEEN, mask=row < n_rows, other=-1).to(tl.int64)
        in_place = (start >= 0) & (start % SIXTEEN == 0) & (slot == start + token % SIXTEEN)
        if ALIGN >= 4:
            if tl.min(in_place.to(tl.int32), 0) == 1:
                store_sixteens(words, out, slots + first, out_page, HEAD, RUNS, WIDTH, PAGE, ALIGN, V_BYTE)
            else:
                store_anywhere(words, out, slots, first, n_rows, out_page, HEAD, RUNS, WIDTH, PAGE, V_BYTE)
        else:
            store_anywhere(words, out, slots, first, n_rows, out_page, HEAD, RUNS, WIDTH, PAGE, V_BYTE)


@triton.jit(do_not_specialize=["n_rows"])
def write(
    k_in, v_in, slots, n_rows, k_in_row, k_in_head, v_in_row, v_in_head,
    k, v, k_page, k_slot, k_head, v_page, v_slot, v_head,
    k_scale, v_scale, ks_page, ks_slot, ks_head, vs_page, vs_slot, vs_head,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr, PAGE: tl.constexpr,
    ALIGN: tl.constexpr, V_BYTE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one KV head, K (last grid axis 0) or V (1). Grid (ceil(n_rows / ROWS), kv_heads, 2).

    Takes the arguments of kvreg_triton.write_int4.write. A product has at least 16 lines, see the assertion.
    """
    tl.static_assert(ROWS * WIDTH >= SIDE * SPAN)
    let_dependents_start()
    wait_for_the_launch_before()
    head = tl.program_id(1)
    k_in += head * k_in_head
    v_in += head * v_in_head
    k += head * aligned(k_head, ALIGN)
    v += head * aligned(v_head, ALIGN)
    k_scale += head * ks_head
    v_scale += head * vs_head
    if tl.program_id(2) == 0:
        write_by_rows(
            k_in, slots, n_rows, k_in_row, k, k_page, k_slot, k_scale, ks_page, ks_slot,
            HEAD, WIDTH, BLOCK, LEVELS, PAGE, ALIGN, ROWS,
        )  # fmt: skip
    elif V_BYTE == 1:
        write_by_rows(
            v_in, slots, n_rows, v_in_row, v, v_page, v_slot, v_scale, vs_page, vs_slot,
            HEAD, WIDTH, BLOCK, LEVELS, PAGE, ALIGN, ROWS,
        )  # fmt: skip
    else:
        write_by_tokens(
            v_in, slots, n_rows, v_in_row, v, v_page, v_scale, vs_page, vs_slot,
            HEAD, WIDTH, BLOCK, LEVELS, PAGE, ALIGN, V_BYTE, ROWS,
        )  # fmt: skip


WRITE = OverlappingWrite(write)
