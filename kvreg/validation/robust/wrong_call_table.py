"""Wrong calls, one a row: what is replaced in a call that is right, the error, and the words of its message.

Tensors are made where `torch.device` says, so that the same rows try the cpu and a card. In the words PLACE stands
for that torch device and KEY for the key of the device that was selected for.

Longer than its neighbours: it is one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kvreg.core.errors import (
    CallError,
    FeatureNotSelected,
    KvregError,
    UsageError,
    WrongCache,
    WrongDevice,
    WrongDtype,
    WrongShape,
)

PAGES, PAGE, HEAD, KV, Q = 6, 16, 40, 2, 6
"""An awkward geometry: head size 40 has Hadamard blocks of 8, the group is 3."""

Row = tuple[str, Callable[[], dict[str, Any]], type[KvregError], str]
"""(call of `wrong_calls.Calls`, what is replaced, error, words of the message)."""

CONTIGUOUS = "contiguous()"


def rows(n: int = 4, heads: int = KV, head: int = HEAD, dtype: Any = torch.bfloat16, device: Any = None) -> Any:
    """Return rows of ones."""
    return torch.ones((n, heads, head), dtype=dtype, device=device)


def every_second(x: Any) -> Any:
    """Return the same values with stride 2 on the last axis."""
    return torch.stack((x, x), dim=-1).flatten(-2)[..., ::2]


def ints(*values: int, dtype: Any = torch.int32, device: Any = None) -> Any:
    """Return whole numbers in a row."""
    return torch.tensor(values, dtype=dtype, device=device)


def ranges(*shape: int, dtype: Any = torch.int32, device: Any = None) -> Any:
    """Return prefix ranges that are none."""
    return torch.zeros(shape or (3, 2, 2), dtype=dtype, device=device)


def at(x: Any, place: Any, value: Any) -> Any:
    """Return the tensor with one value replaced."""
    x[place] = value
    return x


def two() -> Any:
    """Return scales of K and V."""
    return torch.tensor([1.0, 2.0])


def within(out: Any, name: str, like: Any) -> dict[str, Any]:
    """Return `out` and an argument of the values of `like` that lies in the middle of its memory."""
    inside = out.view(torch.uint8).flatten()[64:].view(like.dtype)[: like.numel()].view(like.shape)
    inside.copy_(like)
    return {"out": out, name: inside}


WRONG: Mapping[str, Row] = {
    # write
    "write: cache is a tensor": ("write", lambda: {"cache": rows()}, WrongCache, "KVCache Tensor allocate"),
    "write: cache is None": ("write", lambda: {"cache": None}, WrongCache, "KVCache NoneType"),
    "write: k is a list": ("write", lambda: {"k": [[1.0]]}, WrongDtype, "k: torch.Tensor list"),
    "write: v is None": ("write", lambda: {"v": None}, WrongDtype, "v: torch.Tensor NoneType"),
    "write: k of two axes": ("write", lambda: {"k": rows().flatten(1)}, WrongShape, "k: (rows, 2, 40) (4, 80)"),
    "write: k of four axes": ("write", lambda: {"k": rows()[None]}, WrongShape, "k: (1, 4, 2, 40)"),
    "write: k of query heads": ("write", lambda: {"k": rows(heads=Q)}, WrongShape, "k: (rows, 2, 40) (4, 6, 40)"),
    "write: k of another head size": ("write", lambda: {"k": rows(head=48)}, WrongShape, "k: 40 48 select"),
    "write: v of another head size": ("write", lambda: {"v": rows(head=32)}, WrongShape, "v: 40 32"),
    "write: k in fp16": ("write", lambda: {"k": rows().half()}, WrongDtype, "k: torch.bfloat16 torch.float16 k.to("),
    "write: k in fp32": ("write", lambda: {"k": rows().float()}, WrongDtype, "k: torch.bfloat16 torch.float32"),
    "write: v in fp16": ("write", lambda: {"v": rows().half()}, WrongDtype, "v: torch.bfloat16 torch.float16 v.to("),
    "write: k elsewhere": ("write", lambda: {"k": rows(device="meta")}, WrongDevice, "k: PLACE meta k.to("),
    "write: v elsewhere": ("write", lambda: {"v": rows(device="meta")}, WrongDevice, "v: PLACE meta"),
    "write: k of stride 2": (
        "write",
        lambda: {"k": every_second(rows())},
        WrongShape,
        f"k: stride 1 2 k.{CONTIGUOUS}",
    ),
    "write: v of stride 2": ("write", lambda: {"v": every_second(rows())}, WrongShape, f"v: stride v.{CONTIGUOUS}"),
    "write: k transposed": (
        "write",
        lambda: {"k": torch.ones(4, HEAD, KV).bfloat16().mT},
        WrongShape,
        f"k: {CONTIGUOUS}",
    ),
    "write: fewer rows of v": ("write", lambda: {"v": rows(3)}, WrongShape, "v: 4 rows 3"),
    "write: more rows of v": ("write", lambda: {"v": rows(5)}, WrongShape, "v: 4 rows 5"),
    "write: slots a list": ("write", lambda: {"slots": [0, 1, 2, 3]}, WrongDtype, "slots: torch.Tensor list"),
    "write: slots float": (
        "write",
        lambda: {"slots": torch.ones(4)},
        WrongDtype,
        "slots: torch.int32 torch.int64 float32",
    ),
    "write: slots int16": (
        "write",
        lambda: {"slots": ints(0, 1, dtype=torch.int16)},
        WrongDtype,
        "slots: torch.int16",
    ),
    "write: slots bool": ("write", lambda: {"slots": torch.ones(4).bool()}, WrongDtype, "slots: torch.bool"),
    "write: slots of two axes": (
        "write",
        lambda: {"slots": ints(0, 1)[None]},
        WrongShape,
        "slots: one dimension (1, 2)",
    ),
    "write: slots a scalar": ("write", lambda: {"slots": torch.tensor(1)}, WrongShape, "slots: one dimension ()"),
    "write: more slots than rows": ("write", lambda: {"slots": ints(0, 1, 2, 3, 4)}, WrongShape, "slots: at most 4 5"),
    "write: slots strided": (
        "write",
        lambda: {"slots": ints(0, 1, 2, 3)[::2]},
        WrongShape,
        f"slots: stride 2 {CONTIGUOUS}",
    ),
    "write: slots elsewhere": ("write", lambda: {"slots": ints(0, device="meta")}, WrongDevice, "slots: PLACE meta"),
    # attend: tensors
    "attend: cache is a tensor": ("attend", lambda: {"cache": rows()}, WrongCache, "KVCache Tensor"),
    "attend: q is a list": ("attend", lambda: {"q": [1.0]}, WrongDtype, "q: torch.Tensor list"),
    "attend: q in fp16": ("attend", lambda: {"q": rows(3, Q).half()}, WrongDtype, "q: bfloat16 float16"),
    "attend: q of KV heads": ("attend", lambda: {"q": rows(3, KV)}, WrongShape, "q: (rows, 6, 40) (3, 2, 40)"),
    "attend: q of two axes": ("attend", lambda: {"q": rows(3, Q).flatten(1)}, WrongShape, "q: (3, 240)"),
    "attend: q of another head size": ("attend", lambda: {"q": rows(3, Q, 96)}, WrongShape, "q: 40 96"),
    "attend: q elsewhere": ("attend", lambda: {"q": rows(3, Q, device="meta")}, WrongDevice, "q: PLACE meta"),
    "attend: q of stride 2": ("attend", lambda: {"q": every_second(rows(3, Q))}, WrongShape, f"q: q.{CONTIGUOUS}"),
    "attend: table a list": ("attend", lambda: {"page_table": [[0]]}, WrongDtype, "page_table: torch.Tensor"),
    "attend: table int64": (
        "attend",
        lambda: {"page_table": torch.zeros(3, 3).long()},
        WrongDtype,
        "page_table: int32 int64",
    ),
    "attend: table of one axis": (
        "attend",
        lambda: {"page_table": ints(0, 1, 2)},
        WrongShape,
        "page_table: (3, pages) (3,)",
    ),
    "attend: table of two rows": (
        "attend",
        lambda: {"page_table": torch.zeros(2, 3).int()},
        WrongShape,
        "page_table: (2, 3)",
    ),
    "attend: table too narrow": (
        "attend",
        lambda: {"page_table": torch.zeros(3, 2).int()},
        WrongShape,
        "page_table: 3 pages max_context 40 found 2",
    ),
    "attend: table transposed": (
        "attend",
        lambda: {"page_table": torch.zeros(3, 3).int().T},
        WrongShape,
        "table: stride 3",
    ),
    "attend: table elsewhere": (
        "attend",
        lambda: {"page_table": torch.zeros(3, 3, device="meta").int()},
        WrongDevice,
        "meta",
    ),
    "attend: lengths int64": (
        "attend",
        lambda: {"seq_lens": ints(33, 40, 0).long()},
        WrongDtype,
        "seq_lens: int32 int64",
    ),
    "attend: lengths of two axes": (
        "attend",
        lambda: {"seq_lens": ints(33, 40, 0)[None]},
        WrongShape,
        "seq_lens: (1, 3)",
    ),
    "attend: lengths strided": (
        "attend",
        lambda: {"seq_lens": ints(33, 1, 40, 1, 0, 1)[::2]},
        WrongShape,
        "seq_lens: stride",
    ),
    "attend: lengths elsewhere": (
        "attend",
        lambda: {"seq_lens": ints(1, 1, 1, device="meta")},
        WrongDevice,
        "seq_lens: meta",
    ),
    "attend: lengths a list": ("attend", lambda: {"seq_lens": [33, 40, 0]}, WrongDtype, "seq_lens: list"),
    "attend: offsets int64": ("attend", lambda: {"cu_q": ints(0, 1, 2, 3).long()}, WrongDtype, "cu_q: int32 int64"),
    "attend: no last offset": ("attend", lambda: {"cu_q": ints(0, 1, 2)}, WrongShape, "cu_q: 4 entries 3"),
    "attend: offsets elsewhere": (
        "attend",
        lambda: {"cu_q": ints(0, 1, 2, 3, device="meta")},
        WrongDevice,
        "cu_q: meta",
    ),
    "attend: out in fp32": ("attend", lambda: {"out": rows(3, Q).float()}, WrongDtype, "out: bfloat16 float32"),
    "attend: out of one row many times": (
        "attend",
        lambda: {"out": rows(1, Q).expand(3, -1, -1)},
        CallError,
        "out: memory of its own strides",
    ),
    "attend: out of two rows": ("attend", lambda: {"out": rows(2, Q)}, WrongShape, "out: 3 rows 2"),
    "attend: out of KV heads": ("attend", lambda: {"out": rows(3, KV)}, WrongShape, "out: (rows, 6, 40) (3, 2, 40)"),
    "attend: out elsewhere": ("attend", lambda: {"out": rows(3, Q, device="meta")}, WrongDevice, "out: meta"),
    "attend: out of stride 2": ("attend", lambda: {"out": every_second(rows(3, Q))}, WrongShape, "out: stride 1"),
    "attend: out over seq_lens": (
        "attend",
        lambda: within(rows(3, Q), "seq_lens", ints(33, 40, 0)),
        CallError,
        "out: memory of its own seq_lens empty_like",
    ),
    "attend: out over cu_q": (
        "attend",
        lambda: within(rows(3, Q), "cu_q", ints(0, 1, 2, 3)),
        CallError,
        "out: memory of its own cu_q",
    ),
    "attend: out over page_table": (
        "attend",
        lambda: within(rows(3, Q), "page_table", ints(0, 1, 2, 3, 4, 5, 0, 0, 0).view(3, 3)),
        CallError,
        "out: memory of its own page_table",
    ),
    "sinks: under out": (
        "featured",
        lambda: within(rows(3, Q), "sinks", torch.ones(Q)),
        CallError,
        "out: memory of its own sinks",
    ),
    "alibi: under out": (
        "featured",
        lambda: within(rows(3, Q), "alibi", torch.ones(Q)),
        CallError,
        "out: memory of its own alibi",
    ),
    "causal: under out": (
        "featured",
        lambda: within(rows(3, Q), "causal", torch.ones(3, dtype=torch.bool)),
        CallError,
        "out: memory of its own causal",
    ),
    "ranges: under out": (
        "featured",
        lambda: within(rows(3, Q), "prefix_ranges", ranges(3, 2, 2)),
        CallError,
        "out: memory of its own prefix_ranges",
    ),
    "attend: q sparse": ("attend", lambda: {"q": rows(3, Q).to_sparse()}, WrongDtype, "q: dense sparse_coo to_dense"),
    "attend: scale beyond float32": ("attend", lambda: {"scale": 1e39}, CallError, "scale: float32 1e+39"),
    "attend: return_lse a word": ("attend", lambda: {"return_lse": "no"}, CallError, "return_lse: True False 'no'"),
    "softcap: beyond float32": ("featured", lambda: {"softcap": 1e39}, CallError, "softcap: float32 1e+39"),
    "plan: batch_invariant a word": (
        "plan",
        lambda: {"batch_invariant": "False"},
        CallError,
        "batch_invariant: True False 'False'",
    ),
    "plan: batch_invariant None": ("plan", lambda: {"batch_invariant": None}, CallError, "batch_invariant: True None"),
    "write: k sparse": ("write", lambda: {"k": rows().to_sparse()}, WrongDtype, "k: dense sparse_coo k.to_dense()"),
    "write: k nested": (
        "write",
        lambda: {"k": torch.nested.nested_tensor([rows()[0], rows()[1]])},
        WrongDtype,
        "k: dense nested",
    ),
    "scales: beyond float32": ("allocate", lambda: {"tensor_scales": (1e39, 1.0)}, CallError, "float32 1e+39"),
    "scales: 0 in float32": ("allocate", lambda: {"tensor_scales": (1e-50, 1.0)}, CallError, "float32 1e-50"),
    # attend: plan and scale
    "attend: no plan": ("attend", lambda: {"plan": None}, CallError, "plan: Plan NoneType kvreg.plan"),
    "attend: plan is a dict": ("attend", lambda: {"plan": {}}, CallError, "plan: Plan dict"),
    "attend: scale nan": ("attend", lambda: {"scale": float("nan")}, CallError, "scale: finite nan"),
    "attend: scale infinite": ("attend", lambda: {"scale": float("inf")}, CallError, "scale: finite inf"),
    "attend: scale a tensor": ("attend", lambda: {"scale": torch.tensor(0.1)}, CallError, "scale: number Tensor"),
    "attend: scale a text": ("attend", lambda: {"scale": "0.1"}, CallError, "scale: number str"),
    "attend: scale a bool": ("attend", lambda: {"scale": True}, CallError, "scale: number True"),
    # attend: features
    "attend: not causal": (
        "attend",
        lambda: {"causal": False},
        FeatureNotSelected,
        "non_causal features=('causal', 'non_causal')",
    ),
    "attend: causal by list": (
        "attend",
        lambda: {"causal": [True, False, True]},
        FeatureNotSelected,
        "per_sequence_causal",
    ),
    "attend: causal by tensor": (
        "attend",
        lambda: {"causal": torch.ones(3).bool()},
        FeatureNotSelected,
        "per_sequence_causal",
    ),
    "attend: causal by word": ("attend", lambda: {"causal": "yes"}, CallError, "causal: True, False str"),
    "attend: causal by number": ("attend", lambda: {"causal": 1}, CallError, "causal: int"),
    "attend: window": (
        "attend",
        lambda: {"window": 128},
        FeatureNotSelected,
        "window kvreg.select('KEY', 'int4_per_token_head', 40,",
    ),
    "attend: window of zero": (
        "attend",
        lambda: {"window": 0},
        FeatureNotSelected,
        "window features=('causal', 'window')",
    ),
    "attend: softcap": (
        "attend",
        lambda: {"softcap": 30.0},
        FeatureNotSelected,
        "softcap features=('causal', 'softcap')",
    ),
    "attend: sinks": (
        "attend",
        lambda: {"sinks": torch.ones(Q)},
        FeatureNotSelected,
        "sinks features=('causal', 'sinks')",
    ),
    "attend: alibi": (
        "attend",
        lambda: {"alibi": torch.ones(Q)},
        FeatureNotSelected,
        "alibi features=('causal', 'alibi')",
    ),
    "attend: prefix ranges": ("attend", lambda: {"prefix_ranges": ints(0, 1)}, FeatureNotSelected, "prefix_ranges"),
    # attend: arguments of features that were selected
    "causal: a bool short": (
        "featured",
        lambda: {"causal": [True, False]},
        WrongShape,
        "causal: 3 entries 2 seq_lens",
    ),
    "causal: a bool too many": ("featured", lambda: {"causal": (True,) * 4}, WrongShape, "causal: 3 entries 4"),
    "causal: no bools": ("featured", lambda: {"causal": [1, 0, 1]}, CallError, "causal: bools 1 (int)"),
    "causal: a None among them": (
        "featured",
        lambda: {"causal": [True, None, True]},
        CallError,
        "causal: None NoneType",
    ),
    "causal: tensor of ints": (
        "featured",
        lambda: {"causal": ints(1, 0, 1)},
        WrongDtype,
        "causal: torch.bool torch.int32",
    ),
    "causal: tensor of two": ("featured", lambda: {"causal": torch.ones(2).bool()}, WrongShape, "causal: 3 entries 2"),
    "causal: tensor of two axes": (
        "featured",
        lambda: {"causal": torch.ones(1, 3).bool()},
        WrongShape,
        "causal: (1, 3)",
    ),
    "causal: tensor strided": (
        "featured",
        lambda: {"causal": torch.ones(6).bool()[::2]},
        WrongShape,
        "causal: stride 1 2",
    ),
    "causal: tensor elsewhere": (
        "featured",
        lambda: {"causal": torch.ones(3, device="meta").bool()},
        WrongDevice,
        "causal: meta",
    ),
    "window: zero": ("featured", lambda: {"window": 0}, CallError, "window: 1 to 0 None"),
    "window: negative": ("featured", lambda: {"window": -1}, CallError, "window: 1 to -1 None"),
    "window: beyond int32": ("featured", lambda: {"window": 1 << 31}, CallError, "window: 2147483647 2147483648"),
    "window: a float": ("featured", lambda: {"window": 128.0}, CallError, "window: int float"),
    "window: a bool": ("featured", lambda: {"window": True}, CallError, "window: int bool"),
    "window: a tensor": ("featured", lambda: {"window": torch.tensor(5)}, CallError, "window: int host Tensor"),
    "window: left and right": ("featured", lambda: {"window": (5, 0)}, CallError, "window: int tuple"),
    "softcap: zero": ("featured", lambda: {"softcap": 0}, CallError, "softcap: above 0 None"),
    "softcap: negative": ("featured", lambda: {"softcap": -30.0}, CallError, "softcap: above -30.0"),
    "softcap: nan": ("featured", lambda: {"softcap": float("nan")}, CallError, "softcap: finite nan"),
    "softcap: infinite": ("featured", lambda: {"softcap": float("inf")}, CallError, "softcap: finite inf"),
    "softcap: a bool": ("featured", lambda: {"softcap": True}, CallError, "softcap: number bool"),
    "softcap: a tensor": ("featured", lambda: {"softcap": torch.tensor(5.0)}, CallError, "softcap: host Tensor"),
    "sinks: of KV heads": ("featured", lambda: {"sinks": torch.ones(KV)}, WrongShape, "sinks: 6 entries 2"),
    "sinks: in bf16": (
        "featured",
        lambda: {"sinks": torch.ones(Q).bfloat16()},
        WrongDtype,
        "sinks: float32 bfloat16 sinks.to(",
    ),
    "sinks: a number": ("featured", lambda: {"sinks": 1.0}, WrongDtype, "sinks: torch.Tensor float"),
    "sinks: of two axes": ("featured", lambda: {"sinks": torch.ones(1, Q)}, WrongShape, "sinks: one dimension (1, 6)"),
    "sinks: strided": (
        "featured",
        lambda: {"sinks": torch.ones(2 * Q)[::2]},
        WrongShape,
        f"sinks: stride {CONTIGUOUS}",
    ),
    "sinks: elsewhere": ("featured", lambda: {"sinks": torch.ones(Q, device="meta")}, WrongDevice, "sinks: meta"),
    "alibi: of KV heads": ("featured", lambda: {"alibi": torch.ones(KV)}, WrongShape, "alibi: 6 entries 2"),
    "alibi: in fp16": ("featured", lambda: {"alibi": torch.ones(Q).half()}, WrongDtype, "alibi: float32 float16"),
    "alibi: a list": ("featured", lambda: {"alibi": [0.5] * Q}, WrongDtype, "alibi: torch.Tensor list"),
    "alibi: by sequence": ("featured", lambda: {"alibi": torch.ones(3, Q)}, WrongShape, "alibi: one dimension (3, 6)"),
    "alibi: elsewhere": ("featured", lambda: {"alibi": torch.ones(Q, device="meta")}, WrongDevice, "alibi: meta"),
    "ranges: a list": (
        "featured",
        lambda: {"prefix_ranges": [[0, 4]]},
        WrongDtype,
        "prefix_ranges: torch.Tensor list",
    ),
    "ranges: int64": (
        "featured",
        lambda: {"prefix_ranges": ranges(dtype=torch.int64)},
        WrongDtype,
        "prefix_ranges: int32 int64",
    ),
    "ranges: of two axes": (
        "featured",
        lambda: {"prefix_ranges": ranges(3, 2)},
        WrongShape,
        "prefix_ranges: (3, ranges, 2) (3, 2)",
    ),
    "ranges: of two sequences": (
        "featured",
        lambda: {"prefix_ranges": ranges(2, 2, 2)},
        WrongShape,
        "(3, ranges, 2) (2, 2, 2)",
    ),
    "ranges: of three numbers": (
        "featured",
        lambda: {"prefix_ranges": ranges(3, 2, 3)},
        WrongShape,
        "(3, 2, 3) begin = end",
    ),
    "ranges: transposed": (
        "featured",
        lambda: {"prefix_ranges": ranges(3, 2, 2).mT},
        WrongShape,
        f"prefix_ranges: strides (4, 1, 2) {CONTIGUOUS}",
    ),
    "ranges: elsewhere": ("featured", lambda: {"prefix_ranges": ranges(3, 2, 2, device="meta")}, WrongDevice, "meta"),
    # allocate: scales of the whole tensor
    "scales: where rows have their own": (
        "allocate",
        lambda: {"mode": "int8_per_token_head", "tensor_scales": (1.0, 1.0)},
        CallError,
        "tensor_scales: None int8_per_token_head fp8_per_tensor",
    ),
    "scales: where nothing is scaled": (
        "allocate",
        lambda: {"mode": "none", "tensor_scales": two()},
        CallError,
        "None none Tensor",
    ),
    "scales: one number": (
        "allocate",
        lambda: {"tensor_scales": 0.5},
        CallError,
        "tensor_scales: two float (k_scale, v_scale)",
    ),
    "scales: three numbers": (
        "allocate",
        lambda: {"tensor_scales": (1.0, 1.0, 1.0)},
        CallError,
        "tensor_scales: two 3 entries",
    ),
    "scales: zero": ("allocate", lambda: {"tensor_scales": (0.0, 1.0)}, CallError, "tensor_scales: above 0 0.0"),
    "scales: negative": ("allocate", lambda: {"tensor_scales": (1.0, -1.0)}, CallError, "tensor_scales: above -1.0"),
    "scales: nan": (
        "allocate",
        lambda: {"tensor_scales": (float("nan"), 1.0)},
        CallError,
        "tensor_scales: finite nan",
    ),
    "scales: a text": ("allocate", lambda: {"tensor_scales": ("1.0", 1.0)}, CallError, "tensor_scales: finite str"),
    "scales: tensor in fp16": (
        "allocate",
        lambda: {"tensor_scales": two().half()},
        WrongDtype,
        "tensor_scales: float32 float16",
    ),
    "scales: tensor of one": (
        "allocate",
        lambda: {"tensor_scales": torch.ones(1)},
        WrongShape,
        "tensor_scales: (2,) (1,)",
    ),
    "scales: tensor of heads": ("allocate", lambda: {"tensor_scales": torch.ones(2, KV)}, WrongShape, "(2,) (2, 2)"),
    "scales: tensor strided": (
        "allocate",
        lambda: {"tensor_scales": torch.ones(4)[::2]},
        WrongShape,
        "stride 1 (2,) (2,)",
    ),
    "scales: tensor elsewhere": (
        "allocate",
        lambda: {"tensor_scales": two().to("meta")},
        WrongDevice,
        "tensor_scales: PLACE meta",
    ),
    # plan
    "plan: no cache": ("plan", lambda: {"cache": None}, WrongCache, "KVCache NoneType"),
    "plan: no context": ("plan", lambda: {"max_context": 0}, WrongShape, "max_context: at least 1 found 0"),
    "plan: context a float": ("plan", lambda: {"max_context": 8.0}, CallError, "max_context: int float"),
    "plan: context a tensor": (
        "plan",
        lambda: {"max_context": torch.tensor(8)},
        CallError,
        "max_context: host Tensor wait",
    ),
    "plan: context a bool": ("plan", lambda: {"max_context": True}, CallError, "max_context: int bool"),
    "plan: lengths int64": ("plan", lambda: {"seq_lens": ints(3, 4).long()}, WrongDtype, "seq_lens: int64"),
    "plan: offsets too many": ("plan", lambda: {"cu_q": ints(0, 1, 2, 3)}, WrongShape, "cu_q: 3 entries 4"),
    "plan: offsets elsewhere": (
        "plan",
        lambda: {"cu_q": ints(0, 1, 2, device="meta")},
        WrongDevice,
        "cu_q: PLACE meta",
    ),
    # pages
    "copy_pages: no cache": ("copy", lambda: {"cache": 3}, WrongCache, "KVCache int"),
    "copy_pages: fewer targets": ("copy", lambda: {"dst": ints(2)}, WrongShape, "dst: 2 pages 1"),
    "copy_pages: source float": ("copy", lambda: {"src": torch.zeros(2)}, WrongDtype, "src: float32"),
    "copy_pages: source of two axes": ("copy", lambda: {"src": ints(0, 1)[None]}, WrongShape, "src: one dimension"),
    "copy_pages: target elsewhere": ("copy", lambda: {"dst": ints(2, 3, device="meta")}, WrongDevice, "dst: meta"),
    "dequantize: no cache": ("dequantize", lambda: {"cache": "x"}, WrongCache, "KVCache str"),
    "dequantize: slots float": ("dequantize", lambda: {"slots": torch.zeros(2)}, WrongDtype, "slots: float32"),
    "convert: no cache": ("convert", lambda: {"cache": None}, WrongCache, "KVCache NoneType"),
    "convert: unknown layout": ("convert", lambda: {"layout": "planar.9"}, UsageError, "planar.9 planar.1 inline.1"),
    "convert: no layout": ("convert", lambda: {"layout": "planar"}, UsageError, "layout: planar.1 'planar'"),
    "convert: layout a number": ("convert", lambda: {"layout": 1}, UsageError, "layout: planar.1 1;"),
}
"""Seen on every device: shapes, dtypes, devices, strides and words."""

WRONG_VALUES: Mapping[str, Row] = {
    "write: slot behind the last": ("write", lambda: {"slots": ints(0, 96)}, CallError, "slots: below 96 96 -1"),
    "write: slot far behind": (
        "write",
        lambda: {"slots": ints(1 << 40, dtype=torch.int64)},
        CallError,
        "slots: 1099511627776",
    ),
    "write: one slot twice": ("write", lambda: {"slots": ints(5, -1, 5, -1)}, CallError, "slots: once 5 twice"),
    "sinks: a nan": ("featured", lambda: {"sinks": at(torch.ones(Q), 4, torch.nan)}, CallError, "sinks[4]: -inf nan"),
    "sinks: infinite": ("featured", lambda: {"sinks": at(torch.ones(Q), 0, torch.inf)}, CallError, "sinks[0]: inf"),
    "alibi: infinite": (
        "featured",
        lambda: {"alibi": at(torch.ones(Q), 2, -torch.inf)},
        CallError,
        "alibi[2]: finite -inf",
    ),
    "ranges: begin before the first": (
        "featured",
        lambda: {"prefix_ranges": at(ranges(3, 2, 2), (2, 1), ints(-1, 3))},
        CallError,
        "prefix_ranges[2, 1]: at least 0 [-1, 3]",
    ),
    "scales: tensor with a zero": (
        "allocate",
        lambda: {"tensor_scales": torch.tensor([1.0, 0.0])},
        CallError,
        "above 0 0.0",
    ),
    "attend: a negative length": (
        "attend",
        lambda: {"seq_lens": ints(33, -1, 0)},
        CallError,
        "seq_lens[1]: at least 0 -1",
    ),
    "attend: longer than planned": (
        "attend",
        lambda: {"seq_lens": ints(33, 41, 0)},
        CallError,
        "seq_lens[1]: 0 to 40 41",
    ),
    "attend: offsets fall": ("attend", lambda: {"cu_q": ints(0, 2, 1, 3)}, CallError, "cu_q: never fall [0, 2, 1, 3]"),
    "attend: offsets from 1": ("attend", lambda: {"cu_q": ints(1, 1, 2, 3)}, CallError, "cu_q: from 0 1 first"),
    "attend: offsets too far": ("attend", lambda: {"cu_q": ints(0, 1, 2, 4)}, CallError, "cu_q: 3 rows 4"),
    "attend: a negative offset": ("attend", lambda: {"cu_q": ints(-1, 1, 2, 3)}, CallError, "cu_q: from 0 -1"),
    "attend: a negative page": (
        "attend",
        lambda: {"page_table": ints(0, 1, -1, 3, 4, 5, 0, 0, 0).view(3, 3)},
        CallError,
        "page_table[0]: 0 to 5 -1",
    ),
    "attend: a page too far": (
        "attend",
        lambda: {"page_table": ints(0, 1, 2, 3, 4, 6, 0, 0, 0).view(3, 3)},
        CallError,
        "page_table[1]: 0 to 5 6",
    ),
    "copy_pages: source too far": ("copy", lambda: {"src": ints(0, 6)}, CallError, "src: 0 to 5 6"),
    "copy_pages: negative target": ("copy", lambda: {"dst": ints(0, -1)}, CallError, "dst: 0 to 5 -1"),
    "copy_pages: one target twice": ("copy", lambda: {"dst": ints(3, 3)}, CallError, "dst: once twice"),
    "dequantize: slot too far": ("dequantize", lambda: {"slots": ints(0, 96)}, CallError, "slots: below 96 96"),
}
"""Seen on the cpu only: values of tensors, which a card would have to be waited for to read."""
