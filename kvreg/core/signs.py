"""The sign vector D of the randomized Hadamard transform, without torch or numpy.

D[i] is minus where bit 23 of the i-th output of MT19937 is set, the generator seeded by the classic 32-bit
initialization with `ROTATION_SEED`. That is the vector vLLM draws with torch's CPU generator (bernoulli of one half).
Shorter vectors are prefixes of longer ones.
"""

from __future__ import annotations

import random
from functools import lru_cache

from kvreg.core.modes import ROTATION_SEED

_STATE_WORDS = 624
_INIT_MULTIPLIER = 1812433253
"""Knuth's multiplier of the reference initialization, init_genrand in mt19937ar.c."""
_WORD = 0xFFFFFFFF
_DECIDING_BIT = 1 << 23
"""torch keeps 24 bits of each output for a float32 in [0, 1); this one says whether it is one half or more."""


def _generator(seed: int) -> random.Random:
    """Return Python's MT19937 in the state of the classic initialization; `random.seed` starts from another one."""
    state = [seed & _WORD]
    for index in range(1, _STATE_WORDS):
        last = state[-1]
        state.append((_INIT_MULTIPLIER * (last ^ (last >> 30)) + index) & _WORD)
    generator = random.Random()
    generator.setstate((3, (*state, _STATE_WORDS), None))
    return generator


@lru_cache
def signs(size: int) -> tuple[int, ...]:
    """Return the first `size` signs, each 1 or -1."""
    generator = _generator(ROTATION_SEED)
    return tuple(-1 if generator.getrandbits(32) & _DECIDING_BIT else 1 for _ in range(size))
