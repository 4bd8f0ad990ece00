"""A decode step in plain torch, with random weights: everything but the attention, which is handed in.

What a step does: for each layer RMSNorm, the projection to Q, K and V, rotary positions, the cache's write, attention,
the output projection, RMSNorm, gate and up, SiLU, down, and the two residual sums; then the last norm and the LM head.
The embedding's row and the sampling of a token are left out: they are the same for every cache, and small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from kvreg.bench.material import DTYPE
from kvreg.bench.step.models import StepModel

EPSILON = 1e-5
ROPE_BASE = 10000.0


class Attention(Protocol):
    """The caches of all layers, and how a layer attends."""

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put the newest row of each sequence into a layer's cache; `k`, `v`: (batch, kv_heads, head_size)."""

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Return (batch, q_heads * head_size) of `q`, (batch, q_heads, head_size)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer, each (out, in) bf16."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Network:
    """The weights of a model, and the hidden state that a step begins with."""

    model: StepModel
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor
    embedded: torch.Tensor
    """(batch, hidden) bf16."""
    cos: torch.Tensor
    """(head_size,) bf16, of the one position that all sequences are at."""
    sin: torch.Tensor
    """(head_size,) bf16, the first half negative."""


def build(model: StepModel, batch: int, position: int, place: str) -> Network:
    """Return random weights N(0, 1 / in), so that a layer's outputs are as large as its inputs."""
    torch.manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=place, dtype=DTYPE).mul_(columns**-0.5)

    def ones() -> torch.Tensor:
        return torch.ones(model.hidden, device=place, dtype=DTYPE)

    wide = model.q_heads * model.head_size
    heads = model.q_heads + 2 * model.kv_heads
    layers = tuple(
        Layer(
            attention_norm=ones(),
            qkv=matrix(heads * model.head_size, model.hidden),
            out=matrix(model.hidden, wide),
            mlp_norm=ones(),
            gate_up=matrix(2 * model.intermediate, model.hidden),
            down=matrix(model.hidden, model.intermediate),
        )
        for _ in range(model.layers)
    )
    half = torch.arange(0, model.head_size, 2, device=place, dtype=torch.float64) / model.head_size
    angles = position * ROPE_BASE**-half
    cos, sin = angles.cos().to(DTYPE), angles.sin().to(DTYPE)
    return Network(
        model,
        layers,
        norm=ones(),
        head=matrix(model.vocab, model.hidden),
        embedded=torch.randn(batch, model.hidden, device=place, dtype=DTYPE),
        cos=torch.cat([cos, cos]),
        sin=torch.cat([-sin, sin]),
    )


class Step:
    """One step over a network with one kind of attention; every call does the same work over the same memory.

    `rows` and `rotated` are filled by each layer in turn, so that after a call, or a replay of a graph that holds one,
    they have the last layer's, as `hidden` and `logits` have the step's.
    """

    def __init__(self, network: Network, attention: Attention) -> None:
        model, x = network.model, network.embedded
        batch, kept = len(x), model.q_heads + model.kv_heads
        self.network, self.attention = network, attention
        self.rows = x.new_empty(batch, kept + model.kv_heads, model.head_size)
        """Q, K and V heads before the rotary positions."""
        self.rotated = x.new_empty(batch, kept, model.head_size)
        """Q and K heads behind them."""
        self.hidden = torch.empty_like(x)
        self.logits = x.new_empty(batch, model.vocab)

    @property
    def q(self) -> torch.Tensor:
        """(batch, q_heads, head_size) of the last layer."""
        return self.rotated[:, : self.network.model.q_heads]

    @property
    def k(self) -> torch.Tensor:
        """(batch, kv_heads, head_size) of the last layer."""
        return self.rotated[:, self.network.model.q_heads :]

    @property
    def v(self) -> torch.Tensor:
        """(batch, kv_heads, head_size) of the last layer."""
        return self.rows[:, self.rotated.shape[1] :]

    def forget(self) -> None:
        """Make the results unusable, so that only a step that runs from now on can give them."""
        self.hidden.fill_(torch.nan)
        self.logits.fill_(torch.nan)

    def __call__(self) -> None:
        """Do the step."""
        network, x = self.network, self.network.embedded
        for index, layer in enumerate(network.layers):
            self._project(layer, _normed(x, layer.attention_norm))
            self.attention.store(index, self.k, self.v)
            x = torch.addmm(x, self.attention.attend(index, self.q), layer.out.t())
            gate, up = functional.linear(_normed(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, functional.silu(gate) * up, layer.down.t())
        self.hidden.copy_(_normed(x, network.norm))
        torch.mm(self.hidden, network.head.t(), out=self.logits)

    def _project(self, layer: Layer, x: torch.Tensor) -> None:
        torch.mm(x, layer.qkv.t(), out=self.rows.view(len(x), -1))
        positioned = self.rows[:, : self.rotated.shape[1]]
        # Rolled by half a head, each channel meets the other of its pair: rotary positions in three calls.
        swapped = positioned.roll(self.network.model.head_size // 2, dims=-1)
        torch.addcmul(positioned * self.network.cos, swapped, self.network.sin, out=self.rotated)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)
