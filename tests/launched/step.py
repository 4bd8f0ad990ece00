"""A batch and its cache, with the calls that a layer makes on them."""

from __future__ import annotations

from typing import Any

import caches
import torch

import kvreg
from kvreg.runtime.replay import Known

N, CONTEXT, HEAD, Q_HEADS, KV_HEADS = 4, 4096, 128, 8, 2
INT4 = "int4_per_token_head"
FULL_WAY = {"checks.py:attend_call", "checks.py:write_call"}
"""What a call runs, of its checks, where it is not made again from an earlier one."""


class Step:
    """A cache that knows calls, and the tensors of a batch, which change with `renewed`."""

    def __init__(self, mode: str = INT4, **planned: Any) -> None:
        self.planned = planned
        self.selection = caches.select(mode, HEAD, Q_HEADS, KV_HEADS)
        self.cache = caches.cache(self.selection, CONTEXT // 16)
        self.cache.known = Known()
        self.rows = planned.pop("rows", N)
        self.alive: list[Any] = []
        self.renewed()

    def renewed(self) -> None:
        """Lay all tensors of a call down anew; the old ones stay, so that no address comes twice."""
        self.alive.append(vars(self).copy())
        self.q = torch.zeros(self.rows, Q_HEADS, HEAD, dtype=torch.bfloat16)
        self.k, self.v = (torch.zeros(self.rows, KV_HEADS, HEAD, dtype=torch.bfloat16) for _ in range(2))
        self.slots = torch.arange(self.rows)
        self.seq_lens = torch.full((N,), CONTEXT, dtype=torch.int32)
        self.cu_q = torch.arange(N + 1, dtype=torch.int32) * (self.rows // N)
        self.table = torch.zeros(N, CONTEXT // 16, dtype=torch.int32)
        self.plan = kvreg.plan(self.cache, self.cu_q, self.seq_lens, max_context=CONTEXT, **self.planned)

    def attend(self, **changed: Any) -> Any:
        made = {"q": self.q, "cache": self.cache, "page_table": self.table, "seq_lens": self.seq_lens,
                "cu_q": self.cu_q, "plan": self.plan}  # fmt: skip
        result = kvreg.attend(**{**made, **changed})
        self.alive.append(result)
        return result

    def write(self, **changed: Any) -> None:
        kvreg.write(**{"cache": self.cache, "k": self.k, "v": self.v, "slots": self.slots, **changed})


def offset(tensor: torch.Tensor, count: int = 1) -> torch.Tensor:
    """Return a copy that begins `count` elements behind an aligned address."""
    flat = torch.zeros(tensor.numel() + 16, dtype=tensor.dtype)[count : count + tensor.numel()]
    return flat.view(tensor.shape).copy_(tensor)


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with its rows further apart."""
    wide = torch.zeros(tensor.shape[0], 3 * tensor[0].numel(), dtype=tensor.dtype)
    return wide[:, : tensor[0].numel()].unflatten(1, tensor.shape[1:]).copy_(tensor)
