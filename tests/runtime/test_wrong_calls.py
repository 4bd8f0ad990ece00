"""Every wrong call is a typed error of one line, found before anything is launched: not a byte has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
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
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import convert, copy_pages, dequantize
from kvreg.runtime.plan import plan

PAGES, PAGE, HEAD, KV, Q = 6, 16, 40, 2, 6
"""An awkward geometry: head size 40 has Hadamard blocks of 8, the group is 3."""


def rows(n: int = 4, heads: int = KV, head: int = HEAD, dtype: Any = torch.bfloat16, device: str = "cpu"):
    return torch.ones((n, heads, head), dtype=dtype, device=device)


def every_second(x: torch.Tensor) -> torch.Tensor:
    """The same values with stride 2 on the last axis."""
    return torch.stack((x, x), dim=-1).flatten(-2)[..., ::2]


def ints(*values: int, dtype: Any = torch.int32, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


@dataclass
class Calls:
    """One valid call of each kind; a wrong call is one of them with something replaced."""

    cache: KVCache
    select: Any
    out: torch.Tensor = field(default_factory=lambda: torch.full((3, Q, HEAD), torch.nan, dtype=torch.bfloat16))

    def plan_for(self, *arguments: Any, n_seqs: int = 3, **keywords: Any):
        other = KVCache.allocate(self.select("cpu", *arguments, **{**GEOMETRY, **keywords}), PAGES)
        return plan(other, torch.arange(n_seqs + 1).int(), torch.ones(n_seqs).int(), max_context=40)

    def write(self, **changed: Any) -> None:
        call = {"k": rows(), "v": rows(), "slots": ints(0, 17, -1, 33, dtype=torch.int64), "cache": self.cache}
        call |= changed
        write(call["cache"], call["k"], call["v"], call["slots"])

    def featured(self, **changed: Any) -> None:
        """Attend with a cache whose selection has every feature."""
        cache = KVCache.allocate(self.select("cpu", features=EVERY, **GEOMETRY), PAGES)
        self.attend(cache=cache, plan=plan(cache, ints(0, 1, 2, 3), ints(33, 40, 0), max_context=40), **changed)

    def allocate(self, mode: str = "fp8_per_tensor", **changed: Any) -> None:
        KVCache.allocate(self.select("cpu", mode, **GEOMETRY), PAGES, **changed)

    def attend(self, **changed: Any) -> None:
        call = {
            "q": rows(3, Q),
            "cache": self.cache,
            "page_table": ints(0, 1, 2, 3, 4, 5, 0, 0, 0).view(3, 3),
            "seq_lens": ints(33, 40, 0),
            "cu_q": ints(0, 1, 2, 3),
            "out": self.out,
        }
        if "plan" not in changed:
            call["plan"] = plan(self.cache, ints(0, 1, 2, 3), ints(33, 40, 0), max_context=40)
        attend(**(call | changed))

    def plan(self, **changed: Any) -> None:
        call = {"cache": self.cache, "cu_q": ints(0, 1, 2), "seq_lens": ints(3, 4), "max_context": 8} | changed
        plan(**call)

    def copy(self, **changed: Any) -> None:
        call = {"cache": self.cache, "src": ints(0, 1), "dst": ints(2, 3)} | changed
        copy_pages(call["cache"], call["src"], call["dst"])

    def dequantize(self, **changed: Any) -> None:
        call = {"cache": self.cache, "slots": ints(0, 1)} | changed
        dequantize(call["cache"], call["slots"])

    def convert(self, **changed: Any) -> None:
        call = {"cache": self.cache, "layout": "inline.1"} | changed
        convert(call["cache"], call["layout"])


GEOMETRY = {"head_size": HEAD, "q_heads": Q, "kv_heads": KV, "page": PAGE}
CONTIGUOUS = "contiguous()"
EVERY = (
    "causal", "non_causal", "per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges",
)  # fmt: skip


def ranges(*shape: int, dtype: Any = torch.int32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape or (3, 2, 2), dtype=dtype, device=device)


def at(x: torch.Tensor, place: Any, value: Any) -> torch.Tensor:
    """The tensor with one value replaced."""
    x[place] = value
    return x


TWO = torch.tensor([1.0, 2.0])

WRONG = {
    # write
    "write: cache is a tensor": ("write", {"cache": rows()}, WrongCache, "KVCache Tensor allocate"),
    "write: cache is None": ("write", {"cache": None}, WrongCache, "KVCache NoneType"),
    "write: k is a list": ("write", {"k": [[1.0]]}, WrongDtype, "k: torch.Tensor list"),
    "write: v is None": ("write", {"v": None}, WrongDtype, "v: torch.Tensor NoneType"),
    "write: k of two axes": ("write", {"k": rows().flatten(1)}, WrongShape, "k: (rows, 2, 40) (4, 80)"),
    "write: k of four axes": ("write", {"k": rows()[None]}, WrongShape, "k: (1, 4, 2, 40)"),
    "write: k of query heads": ("write", {"k": rows(heads=Q)}, WrongShape, "k: (rows, 2, 40) (4, 6, 40)"),
    "write: k of another head size": ("write", {"k": rows(head=48)}, WrongShape, "k: 40 48 select"),
    "write: v of another head size": ("write", {"v": rows(head=32)}, WrongShape, "v: 40 32"),
    "write: k in fp16": ("write", {"k": rows().half()}, WrongDtype, "k: torch.bfloat16 torch.float16 k.to("),
    "write: k in fp32": ("write", {"k": rows().float()}, WrongDtype, "k: torch.bfloat16 torch.float32"),
    "write: v in fp16": ("write", {"v": rows().half()}, WrongDtype, "v: torch.bfloat16 torch.float16 v.to("),
    "write: k elsewhere": ("write", {"k": rows(device="meta")}, WrongDevice, "k: cpu meta k.to("),
    "write: v elsewhere": ("write", {"v": rows(device="meta")}, WrongDevice, "v: cpu meta"),
    "write: k of stride 2": ("write", {"k": every_second(rows())}, WrongShape, f"k: stride 1 2 k.{CONTIGUOUS}"),
    "write: v of stride 2": ("write", {"v": every_second(rows())}, WrongShape, f"v: stride v.{CONTIGUOUS}"),
    "write: k transposed": ("write", {"k": torch.ones(4, HEAD, KV).bfloat16().mT}, WrongShape, f"k: {CONTIGUOUS}"),
    "write: fewer rows of v": ("write", {"v": rows(3)}, WrongShape, "v: 4 rows 3"),
    "write: more rows of v": ("write", {"v": rows(5)}, WrongShape, "v: 4 rows 5"),
    "write: slots a list": ("write", {"slots": [0, 1, 2, 3]}, WrongDtype, "slots: torch.Tensor list"),
    "write: slots float": ("write", {"slots": torch.ones(4)}, WrongDtype, "slots: torch.int32 torch.int64 float32"),
    "write: slots int16": ("write", {"slots": ints(0, 1, dtype=torch.int16)}, WrongDtype, "slots: torch.int16"),
    "write: slots bool": ("write", {"slots": torch.ones(4).bool()}, WrongDtype, "slots: torch.bool"),
    "write: slots of two axes": ("write", {"slots": ints(0, 1)[None]}, WrongShape, "slots: one dimension (1, 2)"),
    "write: slots a scalar": ("write", {"slots": torch.tensor(1)}, WrongShape, "slots: one dimension ()"),
    "write: more slots than rows": ("write", {"slots": ints(0, 1, 2, 3, 4)}, WrongShape, "slots: at most 4 5"),
    "write: slots strided": ("write", {"slots": ints(0, 1, 2, 3)[::2]}, WrongShape, f"slots: stride 2 {CONTIGUOUS}"),
    "write: slots elsewhere": ("write", {"slots": ints(0, device="meta")}, WrongDevice, "slots: cpu meta"),
    "write: slot behind the last": ("write", {"slots": ints(0, 96)}, CallError, "slots: below 96 96 -1"),
    "write: slot far behind": (
        "write",
        {"slots": ints(1 << 40, dtype=torch.int64)},
        CallError,
        "slots: 1099511627776",
    ),
    "write: one slot twice": ("write", {"slots": ints(5, -1, 5, -1)}, CallError, "slots: once 5 twice"),
    # attend: tensors
    "attend: cache is a tensor": ("attend", {"cache": rows()}, WrongCache, "KVCache Tensor"),
    "attend: q is a list": ("attend", {"q": [1.0]}, WrongDtype, "q: torch.Tensor list"),
    "attend: q in fp16": ("attend", {"q": rows(3, Q).half()}, WrongDtype, "q: bfloat16 float16"),
    "attend: q of KV heads": ("attend", {"q": rows(3, KV)}, WrongShape, "q: (rows, 6, 40) (3, 2, 40)"),
    "attend: q of two axes": ("attend", {"q": rows(3, Q).flatten(1)}, WrongShape, "q: (3, 240)"),
    "attend: q of another head size": ("attend", {"q": rows(3, Q, 96)}, WrongShape, "q: 40 96"),
    "attend: q elsewhere": ("attend", {"q": rows(3, Q, device="meta")}, WrongDevice, "q: cpu meta"),
    "attend: q of stride 2": ("attend", {"q": every_second(rows(3, Q))}, WrongShape, f"q: q.{CONTIGUOUS}"),
    "attend: table a list": ("attend", {"page_table": [[0]]}, WrongDtype, "page_table: torch.Tensor"),
    "attend: table int64": ("attend", {"page_table": torch.zeros(3, 3).long()}, WrongDtype, "page_table: int32 int64"),
    "attend: table of one axis": ("attend", {"page_table": ints(0, 1, 2)}, WrongShape, "page_table: (3, pages) (3,)"),
    "attend: table of two rows": ("attend", {"page_table": torch.zeros(2, 3).int()}, WrongShape, "page_table: (2, 3)"),
    "attend: table too narrow": (
        "attend",
        {"page_table": torch.zeros(3, 2).int()},
        WrongShape,
        "page_table: 3 pages max_context 40 found 2",
    ),
    "attend: table transposed": ("attend", {"page_table": torch.zeros(3, 3).int().T}, WrongShape, "table: stride 3"),
    "attend: table elsewhere": ("attend", {"page_table": torch.zeros(3, 3, device="meta").int()}, WrongDevice, "meta"),
    "attend: lengths int64": ("attend", {"seq_lens": ints(33, 40, 0).long()}, WrongDtype, "seq_lens: int32 int64"),
    "attend: lengths of two axes": ("attend", {"seq_lens": ints(33, 40, 0)[None]}, WrongShape, "seq_lens: (1, 3)"),
    "attend: lengths strided": ("attend", {"seq_lens": ints(33, 1, 40, 1, 0, 1)[::2]}, WrongShape, "seq_lens: stride"),
    "attend: lengths elsewhere": ("attend", {"seq_lens": ints(1, 1, 1, device="meta")}, WrongDevice, "seq_lens: meta"),
    "attend: lengths a list": ("attend", {"seq_lens": [33, 40, 0]}, WrongDtype, "seq_lens: list"),
    "attend: offsets int64": ("attend", {"cu_q": ints(0, 1, 2, 3).long()}, WrongDtype, "cu_q: int32 int64"),
    "attend: no last offset": ("attend", {"cu_q": ints(0, 1, 2)}, WrongShape, "cu_q: 4 entries 3"),
    "attend: offsets elsewhere": ("attend", {"cu_q": ints(0, 1, 2, 3, device="meta")}, WrongDevice, "cu_q: meta"),
    "attend: out in fp32": ("attend", {"out": rows(3, Q).float()}, WrongDtype, "out: bfloat16 float32"),
    "attend: out of two rows": ("attend", {"out": rows(2, Q)}, WrongShape, "out: 3 rows 2"),
    "attend: out of KV heads": ("attend", {"out": rows(3, KV)}, WrongShape, "out: (rows, 6, 40) (3, 2, 40)"),
    "attend: out elsewhere": ("attend", {"out": rows(3, Q, device="meta")}, WrongDevice, "out: meta"),
    "attend: out of stride 2": ("attend", {"out": every_second(rows(3, Q))}, WrongShape, "out: stride 1"),
    # attend: plan and scale
    "attend: no plan": ("attend", {"plan": None}, CallError, "plan: Plan NoneType kvreg.plan"),
    "attend: plan is a dict": ("attend", {"plan": {}}, CallError, "plan: Plan dict"),
    "attend: scale nan": ("attend", {"scale": float("nan")}, CallError, "scale: finite nan"),
    "attend: scale infinite": ("attend", {"scale": float("inf")}, CallError, "scale: finite inf"),
    "attend: scale a tensor": ("attend", {"scale": torch.tensor(0.1)}, CallError, "scale: number Tensor"),
    "attend: scale a text": ("attend", {"scale": "0.1"}, CallError, "scale: number str"),
    "attend: scale a bool": ("attend", {"scale": True}, CallError, "scale: number True"),
    # attend: features
    "attend: not causal": (
        "attend",
        {"causal": False},
        FeatureNotSelected,
        "non_causal features=('causal', 'non_causal')",
    ),
    "attend: causal by list": ("attend", {"causal": [True, False, True]}, FeatureNotSelected, "per_sequence_causal"),
    "attend: causal by tensor": (
        "attend",
        {"causal": torch.ones(3).bool()},
        FeatureNotSelected,
        "per_sequence_causal",
    ),
    "attend: causal by word": ("attend", {"causal": "yes"}, CallError, "causal: True, False str"),
    "attend: causal by number": ("attend", {"causal": 1}, CallError, "causal: int"),
    "attend: window": (
        "attend",
        {"window": 128},
        FeatureNotSelected,
        "window kvreg.select('cpu', 'int4_per_token_head', 40,",
    ),
    "attend: window of zero": ("attend", {"window": 0}, FeatureNotSelected, "window features=('causal', 'window')"),
    "attend: softcap": ("attend", {"softcap": 30.0}, FeatureNotSelected, "softcap features=('causal', 'softcap')"),
    "attend: sinks": ("attend", {"sinks": torch.ones(Q)}, FeatureNotSelected, "sinks features=('causal', 'sinks')"),
    "attend: alibi": ("attend", {"alibi": torch.ones(Q)}, FeatureNotSelected, "alibi features=('causal', 'alibi')"),
    "attend: prefix ranges": ("attend", {"prefix_ranges": ints(0, 1)}, FeatureNotSelected, "prefix_ranges"),
    # attend: arguments of features that were selected
    "causal: a bool short": ("featured", {"causal": [True, False]}, WrongShape, "causal: 3 entries 2 seq_lens"),
    "causal: a bool too many": ("featured", {"causal": (True,) * 4}, WrongShape, "causal: 3 entries 4"),
    "causal: no bools": ("featured", {"causal": [1, 0, 1]}, CallError, "causal: bools 1 (int)"),
    "causal: a None among them": ("featured", {"causal": [True, None, True]}, CallError, "causal: None NoneType"),
    "causal: tensor of ints": ("featured", {"causal": ints(1, 0, 1)}, WrongDtype, "causal: torch.bool torch.int32"),
    "causal: tensor of two": ("featured", {"causal": torch.ones(2).bool()}, WrongShape, "causal: 3 entries 2"),
    "causal: tensor of two axes": ("featured", {"causal": torch.ones(1, 3).bool()}, WrongShape, "causal: (1, 3)"),
    "causal: tensor strided": ("featured", {"causal": torch.ones(6).bool()[::2]}, WrongShape, "causal: stride 1 2"),
    "causal: tensor elsewhere": (
        "featured",
        {"causal": torch.ones(3, device="meta").bool()},
        WrongDevice,
        "causal: meta",
    ),
    "window: zero": ("featured", {"window": 0}, CallError, "window: 1 to 0 None"),
    "window: negative": ("featured", {"window": -1}, CallError, "window: 1 to -1 None"),
    "window: beyond int32": ("featured", {"window": 1 << 31}, CallError, "window: 2147483647 2147483648"),
    "window: a float": ("featured", {"window": 128.0}, CallError, "window: int float"),
    "window: a bool": ("featured", {"window": True}, CallError, "window: int bool"),
    "window: a tensor": ("featured", {"window": torch.tensor(5)}, CallError, "window: int host Tensor"),
    "window: left and right": ("featured", {"window": (5, 0)}, CallError, "window: int tuple"),
    "softcap: zero": ("featured", {"softcap": 0}, CallError, "softcap: above 0 None"),
    "softcap: negative": ("featured", {"softcap": -30.0}, CallError, "softcap: above -30.0"),
    "softcap: nan": ("featured", {"softcap": float("nan")}, CallError, "softcap: finite nan"),
    "softcap: infinite": ("featured", {"softcap": float("inf")}, CallError, "softcap: finite inf"),
    "softcap: a bool": ("featured", {"softcap": True}, CallError, "softcap: number bool"),
    "softcap: a tensor": ("featured", {"softcap": torch.tensor(5.0)}, CallError, "softcap: host Tensor"),
    "sinks: of KV heads": ("featured", {"sinks": torch.ones(KV)}, WrongShape, "sinks: 6 entries 2"),
    "sinks: in bf16": (
        "featured",
        {"sinks": torch.ones(Q).bfloat16()},
        WrongDtype,
        "sinks: float32 bfloat16 sinks.to(",
    ),
    "sinks: a number": ("featured", {"sinks": 1.0}, WrongDtype, "sinks: torch.Tensor float"),
    "sinks: of two axes": ("featured", {"sinks": torch.ones(1, Q)}, WrongShape, "sinks: one dimension (1, 6)"),
    "sinks: strided": ("featured", {"sinks": torch.ones(2 * Q)[::2]}, WrongShape, f"sinks: stride {CONTIGUOUS}"),
    "sinks: elsewhere": ("featured", {"sinks": torch.ones(Q, device="meta")}, WrongDevice, "sinks: meta"),
    "sinks: a nan": ("featured", {"sinks": at(torch.ones(Q), 4, torch.nan)}, CallError, "sinks[4]: -inf nan"),
    "sinks: infinite": ("featured", {"sinks": at(torch.ones(Q), 0, torch.inf)}, CallError, "sinks[0]: inf"),
    "alibi: of KV heads": ("featured", {"alibi": torch.ones(KV)}, WrongShape, "alibi: 6 entries 2"),
    "alibi: in fp16": ("featured", {"alibi": torch.ones(Q).half()}, WrongDtype, "alibi: float32 float16"),
    "alibi: a list": ("featured", {"alibi": [0.5] * Q}, WrongDtype, "alibi: torch.Tensor list"),
    "alibi: by sequence": ("featured", {"alibi": torch.ones(3, Q)}, WrongShape, "alibi: one dimension (3, 6)"),
    "alibi: elsewhere": ("featured", {"alibi": torch.ones(Q, device="meta")}, WrongDevice, "alibi: meta"),
    "alibi: infinite": ("featured", {"alibi": at(torch.ones(Q), 2, -torch.inf)}, CallError, "alibi[2]: finite -inf"),
    "ranges: a list": ("featured", {"prefix_ranges": [[0, 4]]}, WrongDtype, "prefix_ranges: torch.Tensor list"),
    "ranges: int64": (
        "featured",
        {"prefix_ranges": ranges(dtype=torch.int64)},
        WrongDtype,
        "prefix_ranges: int32 int64",
    ),
    "ranges: of two axes": (
        "featured",
        {"prefix_ranges": ranges(3, 2)},
        WrongShape,
        "prefix_ranges: (3, ranges, 2) (3, 2)",
    ),
    "ranges: of two sequences": (
        "featured",
        {"prefix_ranges": ranges(2, 2, 2)},
        WrongShape,
        "(3, ranges, 2) (2, 2, 2)",
    ),
    "ranges: of three numbers": ("featured", {"prefix_ranges": ranges(3, 2, 3)}, WrongShape, "(3, 2, 3) begin = end"),
    "ranges: transposed": (
        "featured",
        {"prefix_ranges": ranges(3, 2, 2).mT},
        WrongShape,
        f"prefix_ranges: strides (4, 1, 2) {CONTIGUOUS}",
    ),
    "ranges: elsewhere": ("featured", {"prefix_ranges": ranges(3, 2, 2, device="meta")}, WrongDevice, "meta"),
    "ranges: begin before the first": (
        "featured",
        {"prefix_ranges": at(ranges(3, 2, 2), (2, 1), ints(-1, 3))},
        CallError,
        "prefix_ranges[2, 1]: at least 0 [-1, 3]",
    ),
    # allocate: scales of the whole tensor
    "scales: where rows have their own": (
        "allocate",
        {"mode": "int8_per_token_head", "tensor_scales": (1.0, 1.0)},
        CallError,
        "tensor_scales: None int8_per_token_head fp8_per_tensor",
    ),
    "scales: where nothing is scaled": (
        "allocate",
        {"mode": "none", "tensor_scales": TWO},
        CallError,
        "None none Tensor",
    ),
    "scales: one number": (
        "allocate",
        {"tensor_scales": 0.5},
        CallError,
        "tensor_scales: two float (k_scale, v_scale)",
    ),
    "scales: three numbers": (
        "allocate",
        {"tensor_scales": (1.0, 1.0, 1.0)},
        CallError,
        "tensor_scales: two 3 entries",
    ),
    "scales: zero": ("allocate", {"tensor_scales": (0.0, 1.0)}, CallError, "tensor_scales: above 0 0.0"),
    "scales: negative": ("allocate", {"tensor_scales": (1.0, -1.0)}, CallError, "tensor_scales: above -1.0"),
    "scales: nan": ("allocate", {"tensor_scales": (float("nan"), 1.0)}, CallError, "tensor_scales: finite nan"),
    "scales: a text": ("allocate", {"tensor_scales": ("1.0", 1.0)}, CallError, "tensor_scales: finite str"),
    "scales: tensor in fp16": (
        "allocate",
        {"tensor_scales": TWO.half()},
        WrongDtype,
        "tensor_scales: float32 float16",
    ),
    "scales: tensor of one": ("allocate", {"tensor_scales": torch.ones(1)}, WrongShape, "tensor_scales: (2,) (1,)"),
    "scales: tensor of heads": ("allocate", {"tensor_scales": torch.ones(2, KV)}, WrongShape, "(2,) (2, 2)"),
    "scales: tensor strided": ("allocate", {"tensor_scales": torch.ones(4)[::2]}, WrongShape, "stride 1 (2,) (2,)"),
    "scales: tensor elsewhere": (
        "allocate",
        {"tensor_scales": TWO.to("meta")},
        WrongDevice,
        "tensor_scales: cpu meta",
    ),
    "scales: tensor with a zero": ("allocate", {"tensor_scales": torch.tensor([1.0, 0.0])}, CallError, "above 0 0.0"),
    # attend: values
    "attend: a negative length": ("attend", {"seq_lens": ints(33, -1, 0)}, CallError, "seq_lens[1]: 0 to 40 -1"),
    "attend: longer than planned": ("attend", {"seq_lens": ints(33, 41, 0)}, CallError, "seq_lens[1]: 0 to 40 41"),
    "attend: offsets fall": ("attend", {"cu_q": ints(0, 2, 1, 3)}, CallError, "cu_q: never fall [0, 2, 1, 3]"),
    "attend: offsets too far": ("attend", {"cu_q": ints(0, 1, 2, 4)}, CallError, "cu_q: 3 rows 4"),
    "attend: a negative offset": ("attend", {"cu_q": ints(-1, 1, 2, 3)}, CallError, "cu_q: from 0 -1"),
    "attend: a negative page": (
        "attend",
        {"page_table": ints(0, 1, -1, 3, 4, 5, 0, 0, 0).view(3, 3)},
        CallError,
        "page_table[0]: 0 to 5 -1",
    ),
    "attend: a page too far": (
        "attend",
        {"page_table": ints(0, 1, 2, 3, 4, 6, 0, 0, 0).view(3, 3)},
        CallError,
        "page_table[1]: 0 to 5 6",
    ),
    # plan
    "plan: no cache": ("plan", {"cache": None}, WrongCache, "KVCache NoneType"),
    "plan: no context": ("plan", {"max_context": 0}, WrongShape, "max_context: at least 1 found 0"),
    "plan: context a float": ("plan", {"max_context": 8.0}, CallError, "max_context: int float"),
    "plan: context a tensor": ("plan", {"max_context": torch.tensor(8)}, CallError, "max_context: host Tensor wait"),
    "plan: context a bool": ("plan", {"max_context": True}, CallError, "max_context: int bool"),
    "plan: lengths int64": ("plan", {"seq_lens": ints(3, 4).long()}, WrongDtype, "seq_lens: int64"),
    "plan: offsets too many": ("plan", {"cu_q": ints(0, 1, 2, 3)}, WrongShape, "cu_q: 3 entries 4"),
    "plan: offsets elsewhere": ("plan", {"cu_q": ints(0, 1, 2, device="meta")}, WrongDevice, "cu_q: cpu meta"),
    # pages
    "copy_pages: no cache": ("copy", {"cache": 3}, WrongCache, "KVCache int"),
    "copy_pages: fewer targets": ("copy", {"dst": ints(2)}, WrongShape, "dst: 2 pages 1"),
    "copy_pages: source float": ("copy", {"src": torch.zeros(2)}, WrongDtype, "src: float32"),
    "copy_pages: source of two axes": ("copy", {"src": ints(0, 1)[None]}, WrongShape, "src: one dimension"),
    "copy_pages: target elsewhere": ("copy", {"dst": ints(2, 3, device="meta")}, WrongDevice, "dst: meta"),
    "copy_pages: source too far": ("copy", {"src": ints(0, 6)}, CallError, "src: 0 to 5 6"),
    "copy_pages: negative target": ("copy", {"dst": ints(0, -1)}, CallError, "dst: 0 to 5 -1"),
    "copy_pages: one target twice": ("copy", {"dst": ints(3, 3)}, CallError, "dst: once twice"),
    "dequantize: no cache": ("dequantize", {"cache": "x"}, WrongCache, "KVCache str"),
    "dequantize: slots float": ("dequantize", {"slots": torch.zeros(2)}, WrongDtype, "slots: float32"),
    "dequantize: slot too far": ("dequantize", {"slots": ints(0, 96)}, CallError, "slots: below 96 96"),
    "convert: no cache": ("convert", {"cache": None}, WrongCache, "KVCache NoneType"),
    "convert: unknown layout": ("convert", {"layout": "planar.9"}, UsageError, "planar.9 planar.1 inline.1"),
    "convert: no layout": ("convert", {"layout": "planar"}, UsageError, "planar NAME.REVISION"),
    "convert: layout a number": ("convert", {"layout": 1}, UsageError, "layout: planar.1 int"),
}


@pytest.fixture
def calls(allocate, select) -> Calls:
    cache = allocate("cpu", pages=PAGES, **GEOMETRY)
    cache.buffer.copy_(torch.arange(cache.buffer.numel()) % 251)
    return Calls(cache, select)


@pytest.mark.parametrize("row", WRONG)
def test_a_wrong_call_is_typed_says_how_to_mend_it_and_changes_nothing(row, calls):
    call, changed, error, words = WRONG[row]
    before = calls.cache.buffer.clone()

    with pytest.raises(KvregError) as caught:
        getattr(calls, call)(**changed)

    assert type(caught.value) is error
    message = str(caught.value)
    assert "\n" not in message
    missing = [word for word in words.split() if word not in message]
    assert not missing, f"{missing} not in {message!r}"
    assert torch.equal(calls.cache.buffer, before)
    assert calls.out.isnan().all()


@pytest.mark.parametrize("call", ["write", "attend", "featured", "allocate", "plan", "copy", "dequantize", "convert"])
def test_the_calls_that_the_table_varies_are_right_as_they_stand(call, calls):
    getattr(calls, call)()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "none"}, "mode int4_per_token_head none"),
        ({"layout": "inline.1"}, "layout planar.1 inline.1"),
        ({"head_size": 48}, "head_size 40 48"),
        ({"q_heads": 4}, "q_heads 6 4"),
        ({"kv_heads": 3}, "kv_heads 2 3"),
        ({"page": 32}, "page 16 32"),
        ({"dtype": "fp16"}, "dtype bf16 fp16"),
        ({"scores": 1}, "decode torch-int4-decode@1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_plan_of_another_kind_of_cache_is_refused(changed, words, calls):
    other = calls.plan_for(**changed)

    with pytest.raises(WrongCache) as caught:
        calls.attend(plan=other)

    assert all(word in str(caught.value) for word in ("plan:", *words.split()))
    assert calls.out.isnan().all()


def test_page_numbers_that_no_query_leads_to_may_be_anything(calls):
    table = torch.tensor([[0, 1, 2], [-1, 99, -1], [77, 77, 77]], dtype=torch.int32)

    calls.attend(page_table=table, cu_q=ints(0, 3, 3, 3), seq_lens=ints(33, 40, 0))

    assert calls.out[:3].any(-1).all()


def test_a_plan_of_another_batch_is_refused(calls):
    with pytest.raises(WrongShape, match=r"plan: required one for 3 sequences, found one for 2"):
        calls.attend(plan=calls.plan_for(n_seqs=2))


def test_a_plan_serves_every_cache_of_its_kind(calls, allocate):
    other = calls.plan_for()

    calls.attend(plan=other)

    assert (calls.out[2] == 0).all()


def test_causal_attention_needs_the_feature_too(select):
    cache = KVCache.allocate(select("cpu", features=("non_causal",), **GEOMETRY), PAGES)

    with pytest.raises(FeatureNotSelected, match="feature causal"):
        Calls(cache, select).attend()


def test_the_table_of_wrong_calls_is_long_enough():
    assert len(WRONG) >= 150


@pytest.mark.parametrize("features", [
    {"causal": [True, False, True], "window": 1, "softcap": 30, "sinks": torch.zeros(Q), "alibi": torch.zeros(Q)},
    {"causal": torch.ones(3).bool(), "prefix_ranges": ranges(3, 1, 2)},
    {"causal": False, "prefix_ranges": ranges(3, 0, 2), "window": 2**31 - 1},
])  # fmt: skip
def test_the_features_that_the_table_varies_are_right_as_they_stand(features, calls):
    calls.featured(**features)

    assert calls.out.isfinite().all()
