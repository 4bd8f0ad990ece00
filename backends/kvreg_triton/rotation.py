"""The randomized Hadamard transform inside a kernel: signs, then a butterfly, both in float32.

Forward (K, V, Q):  y = H_b (D * x)         on each consecutive block of b channels, b = d & -d
Inverse (output):   x = D * (H_b y) / b     H is symmetric and H_b H_b = b I

The butterfly adds and subtracts only, so each value passes log2(b) roundings of float32 whatever the platform;
a matrix-unit dot would round through TF32 or bf16. Blocks of every power of two from 8 to 512 take the same code.
"""

import triton
import triton.language as tl

# D as bits, 1 for minus, 16 channels a word, the lowest channel in the lowest bit: bit 23 of the draws of an MT19937
# generator seeded with 0x9E3779B9 (kvreg.core.modes.ROTATION_SEED). Words of 16 bits stay positive int32 literals.
SIGN_WORDS = tl.constexpr(
    (
        0xA6F2, 0x9A8C, 0xCA4E, 0x7F7F, 0xC293, 0x59BB, 0xABC7, 0x9480,
        0x747E, 0xB55B, 0x3BBE, 0x5450, 0x67B7, 0xCDF4, 0xBC5F, 0x05DF,
        0xE3CC, 0xB291, 0x3834, 0x5756, 0xE225, 0xE46A, 0x4CA6, 0x67FC,
        0x8691, 0xCFC7, 0xDFF1, 0x32D9, 0xDB89, 0x365F, 0x5346, 0x7562,
    )
)  # fmt: skip


@triton.jit
def signs(WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return D for WIDTH channels, (WIDTH,) float32 of +1 and -1; every block of BLOCK takes the same first signs."""
    channel = tl.arange(0, WIDTH) % BLOCK
    word = tl.full([WIDTH], 0, tl.int32)
    for j in tl.static_range((BLOCK + 15) // 16):
        word = tl.where(channel // 16 == j, SIGN_WORDS[j], word)
    return 1.0 - 2.0 * ((word >> (channel % 16)) & 1).to(tl.float32)


@triton.jit
def hadamard(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr):
    """Return H_BLOCK applied to each block of BLOCK = 2**LEVELS channels of x (ROWS, WIDTH) float32.

    Constant-geometry butterfly: each level pairs the halves of a block, (a, b) -> (a + b, a - b), and moves the pair's
    bit from the highest place of the channel index to the lowest; after LEVELS levels every bit is back where it
    began. The other way round, neighbours taken apart and halves put together, triton-xpu 3.3.0b1 does not compile.
    """
    for _ in tl.static_range(LEVELS):
        a, b = tl.split(tl.permute(tl.reshape(x, [ROWS, WIDTH // BLOCK, 2, BLOCK // 2]), (0, 1, 3, 2)))
        x = tl.reshape(tl.join(a + b, a - b), [ROWS, WIDTH])
    return x
