"""The sign vector D of the rotation, from an own MT19937: neither torch's generator nor a kernel's table is asked.

Definition (facts of vLLM 0.33): classic 32-bit initialisation with `ROTATION_SEED`; sign i is +1 where bit 23 of
the i-th output is 0, else -1. Every length is a prefix of one stream.
"""

from __future__ import annotations

from functools import cache

import torch

from kvreg.core.modes import ROTATION_SEED

_N = 624
_M = 397


def _outputs(seed: int, count: int) -> list[int]:
    """Return the first `count` 32-bit outputs of MT19937 (Matsumoto and Nishimura, 1998)."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, _N):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    outputs: list[int] = []
    while len(outputs) < count:
        for i in range(_N):
            y = (state[i] & 0x80000000) | (state[(i + 1) % _N] & 0x7FFFFFFF)
            state[i] = state[(i + _M) % _N] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        for word in state:
            word ^= word >> 11
            word ^= (word << 7) & 0x9D2C5680
            word ^= (word << 15) & 0xEFC60000
            outputs.append(word ^ (word >> 18))
    return outputs[:count]


@cache
def _signs(n: int) -> tuple[int, ...]:
    return tuple(-1 if (word >> 23) & 1 else 1 for word in _outputs(ROTATION_SEED, n))


def signs(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return D: (n,) float64 of +1 and -1."""
    return torch.tensor(_signs(n), dtype=torch.float64, device=device)
