"""The faults that the gate is tried on: what each does, and in which modes and with which features it can exist."""

from __future__ import annotations

from kvreg.core import formats
from kvreg.core.modes import Mode

_INT4 = (Mode.INT4_PER_TOKEN_HEAD,)
_INT8 = (Mode.INT8_PER_TOKEN_HEAD,)
_FP8 = (Mode.FP8_PER_TOKEN_HEAD, Mode.FP8_PER_TENSOR)
_ROW = (Mode.INT8_PER_TOKEN_HEAD, Mode.FP8_PER_TOKEN_HEAD)
_SCALED = (*_ROW, *_INT4)
_TENSOR = (Mode.FP8_PER_TENSOR,)
_ANY = (Mode.NONE, *_INT4)
"""For faults that need neither a rotation nor codes: rows as they are, and the most that can be between."""

WRITER = {
    "k_unrotated": "K is stored unrotated",
    "v_unrotated": "V is stored unrotated",
    "kv_unrotated": "K and V are stored unrotated",
    "write_nibbles": "odd channels go into the low nibble",
    "write_zero": "the stored zero point is one too high",
    "write_shifted_codes": "codes and zero point are both one lower, where there is room",
    "write_stale_scale": "a row keeps the scale of the row before it",
    "write_k_scale": "V is quantized and stored with K's scale",
    "write_range": "the range leaves 0 out",
    "write_lanes": "a lane beyond the head, holding 8, enters the range",
    "write_signed": "the scale is that of the largest value, not of the largest magnitude",
    "write_128": "the largest magnitude is 128 codes, not 127",
    "write_truncated": "codes are rounded towards zero",
    "write_unclamped": "values beyond the largest one become nan",
    "write_tensor_scale": "V is stored with the tensor scale of K",
    "write_unscaled": "rows are stored without the tensor scale",
    "write_448": "the scale is that of e4m3fn, in a cache of e4m3fnuz",
    "write_fn": "the bits of e4m3fn are stored, in a cache of e4m3fnuz",
    "write_neighbour": "a row is stored in the slot behind its own",
    "write_padding": "a slot of -1 is written, to the cache's last slot",
}
"""Faults of a write, each with what it does."""

READER = {
    "q_unrotated": "the query is not rotated",
    "o_rotated": "the output is not rotated back",
    "read_nibbles": "the low nibble is read as the odd channel",
    "read_zero": "the zero point is read one too high",
    "read_unsigned": "codes are read as unsigned",
    "read_stale_scale": "a row is read with the scale of the row before it",
    "read_k_scale": "V is read with K's scale",
    "read_tensor_scale": "V is read with the tensor scale of K",
    "read_unscaled": "K is read without the tensor scale",
    "read_fn": "e4m3fnuz rows are read as e4m3fn",
    "read_head": "the last query head of a group reads the next group's KV head",
    "split_dropped": "the last split is left out of the merge",
    "tile_skipped": "the last tile is skipped",
    "mask_late": "one key beyond the sequence is read",
    "causal_late": "a query row sees one key too many",
    "scale_undivided": "the softmax scale is not divided by the rotation block",
    "undo_head": "the output is divided by the head size in place of the rotation block",
    "output_scaled": "the output is multiplied by .9",
    "output_zeros": "the output is zeros",
    "output_mean": "each row is the mean of all rows",
    "output_shuffled": "rows are exchanged",
    "row_unwritten": "the last row is not written",
    "empty_untouched": "rows that see no key are not written",
    "lse_base2": "the lse is in base 2",
}
"""Faults of a read, each with what it does."""

FEATURE = {
    "causal_forced": ("non_causal", "a sequence without causality is masked as a causal one"),
    "causal_ignored": ("per_sequence_causal", "causal sequences are read as the others are"),
    "causal_of_next": ("per_sequence_causal", "a sequence has the causality of the next one"),
    "draft_at_end": ("multi_query_split", "every query row of a draft stands at the last position"),
    "window_dropped": ("window", "the window is left out"),
    "window_late": ("window", "the window holds one key too many"),
    "window_early": ("window", "the window holds one key too few"),
    "window_ahead": ("non_causal window", "the window does not end the keys ahead"),
    "softcap_dropped": ("softcap", "the cap is left out"),
    "softcap_unscaled": ("softcap", "the cap is laid on the score before its scale"),
    "sink_dropped": ("sinks", "the sink is left out"),
    "sink_repeated": ("sinks", "the sink is counted in every split"),
    "sink_base2": ("sinks", "the sink is taken for a logit of base 2"),
    "sink_of_group": ("sinks", "every head has the sink of the first one of its group"),
    "sink_not_in_lse": ("sinks", "the lse leaves the sink out"),
    "sink_of_nothing": ("sinks", "rows that see no key have lse -inf, not the sink"),
    "alibi_dropped": ("alibi", "the slopes are left out"),
    "alibi_sign": ("alibi", "far keys gain what they should lose"),
    "alibi_of_group": ("alibi", "every head has the slope of the first one of its group"),
    "alibi_origin": ("alibi", "the distance is counted from the sequence's start"),
    "alibi_capped": ("alibi softcap", "the cap is laid on the sum of score and slope"),
    "range_dropped": ("prefix_ranges", "the ranges are left out"),
    "range_end_late": ("prefix_ranges", "a range holds its end"),
    "range_begin_late": ("prefix_ranges", "a range does not hold its begin"),
    "range_of_rows": ("prefix_ranges", "the rows of a range see all keys of the sequence"),
    "range_in_window": ("prefix_ranges window", "ranges are cut by the window"),
}
"""Faults of a feature: the words of the request that it takes, and what it does."""

_MODES = {
    **dict.fromkeys(
        ("write_stale_scale", "write_k_scale", "write_lanes", "read_stale_scale", "read_k_scale"), _SCALED
    ),
    **dict.fromkeys(("write_signed",), _ROW),
    **dict.fromkeys(("write_128", "read_unsigned"), _INT8),
    "write_truncated": (*_INT8, *_FP8),
    **dict.fromkeys(("write_fn", "read_fn"), _FP8),
    "write_448": (Mode.FP8_PER_TOKEN_HEAD,),
    **dict.fromkeys(
        ("write_unclamped", "write_tensor_scale", "write_unscaled", "read_tensor_scale", "read_unscaled"), _TENSOR
    ),
    **dict.fromkeys(("write_neighbour", "write_padding"), tuple(Mode)),
    **dict.fromkeys(
        (
            "read_head",
            "split_dropped",
            "tile_skipped",
            "mask_late",
            "causal_late",
            "output_scaled",
            "output_zeros",
            "output_mean",
            "output_shuffled",
            "row_unwritten",
            "empty_untouched",
            "lse_base2",
        ),
        _ANY,
    ),
    **dict.fromkeys(FEATURE, (Mode.NONE,)),
}


def modes_of(fault: str) -> tuple[Mode, ...]:
    """Return the modes in which a fault is planted."""
    return _MODES.get(fault, _INT4)


def features_of(fault: str | None) -> tuple[str, ...]:
    """Return the feature words of the request in which a fault is planted."""
    return tuple(FEATURE[fault][0].split()) if fault in FEATURE else ("causal",)


def fp8_of(fault: str | None) -> str:
    """Return the fp8 format of the caches in which a fault is planted."""
    return formats.E4M3FNUZ if fault in ("write_448", "write_fn", "read_fn") else formats.E4M3FN
