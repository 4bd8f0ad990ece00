"""Which keys a query row sees, and what features make of its scores. Scores are in base 2 (times log2 e).

Key t of a sequence is seen from position p where t lies in [first, last), the causal and window bounds of the row, or
where a prefix range holds both. Order: softcap, mask, alibi; sinks join at the end (kvreg.runtime.launchers.Features).
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_bounds(
    position, mine, seq, seq_len, window, causal_flags, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """Return [first, last) for each row; rows that are not `mine` see nothing.

    CAUSAL: 0 no, 1 yes, 2 one flag a sequence. A window reaches both ways where the row is not causal.
    """
    last = tl.zeros_like(position) + seq_len
    if CAUSAL == 1:
        last = tl.minimum(position + 1, last)
    elif CAUSAL == 2:
        last = tl.where(tl.load(causal_flags + seq).to(tl.int32) != 0, tl.minimum(position + 1, last), last)
    first = tl.zeros_like(position)
    if WINDOW:
        first = tl.maximum(position - window + 1, 0)
        last = tl.minimum(last, position + window)
    return first, tl.where(mine, tl.maximum(last, 0), 0)


@triton.jit
def block_bounds(first, last, position, mine, seq_len, range_row, RANGES: tl.constexpr):
    """Return the keys [begin, end) that some row sees, and [all_begin, all_end) that every row of `mine` sees.

    `begin` is moved down to a multiple of 16, which stays in its page: pages are such multiples, and tiles then load
    aligned groups of tokens.
    """
    far = 2147483647
    begin = tl.min(tl.where(last > first, first, far), 0)
    end = tl.max(tl.where(last > first, last, 0), 0)
    for r in tl.static_range(RANGES):
        low = tl.load(range_row + 2 * r)
        high = tl.minimum(tl.load(range_row + 2 * r + 1), seq_len)
        inside = mine & (position >= low) & (position < high)
        begin = tl.minimum(begin, tl.min(tl.where(inside, tl.maximum(low, 0), far), 0))
        end = tl.maximum(end, tl.max(tl.where(inside, high, 0), 0))
    begin = tl.minimum(begin, end) // 16 * 16
    return begin, end, tl.max(tl.where(mine, first, 0), 0), tl.min(tl.where(mine, last, far), 0)


@triton.jit
def adjusted(
    score, tokens, first, last, position, end, softcap, slope, range_row,
    SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, RANGES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return (score, seen) of (rows, tile); unseen scores are -inf. `softcap` and `slope` are in base 2 units.

    `end` is where the keys of this split end: it bounds the keys of a range, never the rows that lie in it.
    """
    if SOFTCAP:
        # tanh by one exponential: large arguments give exp2 = inf or 0, hence exactly +1 or -1, never NaN.
        score = softcap * (1.0 - 2.0 / (tl.exp2(score * (2.0 * LOG2E / softcap)) + 1.0))
    seen = tl.full(score.shape, True, tl.int1)
    if MASKED:
        seen = (tokens[None, :] >= first[:, None]) & (tokens[None, :] < last[:, None])
        for r in tl.static_range(RANGES):
            low = tl.load(range_row + 2 * r)
            high = tl.load(range_row + 2 * r + 1)
            rows = (position >= low) & (position < high)
            seen = seen | (rows[:, None] & ((tokens >= low) & (tokens < tl.minimum(high, end)))[None, :])
        score = tl.where(seen, score, -float("inf"))
    if ALIBI:
        score += slope[:, None] * (tokens[None, :] - position[:, None]).to(tl.float32)
    return score, seen


@triton.jit
def with_sink(top, total, sink):
    """Return (top, total, fade) after a sink logit (base 2, -inf for none) joined; values fade by `fade`."""
    joined = tl.maximum(top, sink)
    base = tl.where(joined == -float("inf"), 0.0, joined)
    fade = tl.exp2(top - base)
    return joined, total * fade + tl.exp2(sink - base), fade
