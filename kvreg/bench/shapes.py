"""The shapes that every quoted time uses, and shapes made from flags. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from kvreg.core.buckets import LARGEST, MOST_AT_ONCE
from kvreg.core.errors import UsageError, wrong
from kvreg.core.requests import Op

Work = Literal["decode", "verify", "prefill", "write"]
"""`verify`: a few drafted tokens a sequence, split over the context as decode is."""
WORKS: tuple[Work, ...] = get_args(Work)
OPS: Mapping[Work, Op] = {"decode": Op.DECODE, "verify": Op.DECODE, "prefill": Op.PREFILL, "write": Op.WRITE}

DRAFTS = 4
"""Query tokens of a sequence in `verify`: three drafted ones and the last accepted."""

_RAGGED = re.compile(r"(?P<least>[1-9][0-9]*):(?P<most>[1-9][0-9]*)\s*x\s*(?P<batch>[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Shape:
    """One call: how many tokens each sequence has in the cache, and the heads of the model."""

    name: str
    work: Work
    contexts: tuple[int, ...]
    """Tokens of each sequence; of a write one number, the tokens that it stores."""
    q_heads: int
    kv_heads: int
    head_size: int
    page: int = 16
    chunk: int = 0
    """Query tokens of each sequence of a prefill, the last ones of its context; 0 stands for all."""

    @property
    def op(self) -> Op:
        """The op whose variants serve it."""
        return OPS[self.work]

    @property
    def features(self) -> tuple[str, ...]:
        """Feature words of its request."""
        return ("causal", "multi_query_split") if self.work == "verify" else ("causal",)

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.q_heads // self.kv_heads

    @property
    def tokens(self) -> int:
        """Tokens in the cache, over all sequences."""
        return sum(self.contexts)

    @property
    def queries(self) -> tuple[int, ...]:
        """Query tokens of each sequence."""
        if self.work == "prefill" and not self.chunk:
            return self.contexts
        most = self.chunk if self.work == "prefill" else DRAFTS if self.work == "verify" else 1
        return tuple(min(most, context) for context in self.contexts)

    @property
    def size(self) -> str:
        """Sequences and contexts in words: `32 x 8192`, `64 of 17 to 131072`, `8192 tokens`, `last 7 of 1 x 64`."""
        if self.work == "write":
            return f"{self.tokens} tokens"
        least, most = min(self.contexts), max(self.contexts)
        last = f"last {self.chunk} of " if self.chunk else ""
        if least == most:
            return f"{last}{len(self.contexts)} x {most}"
        return f"{last}{len(self.contexts)} of {least} to {most}"

    @property
    def heads(self) -> str:
        """Heads in words: `32/8 heads of 128`."""
        return f"{self.q_heads}/{self.kv_heads} heads of {self.head_size}"

    def to_json(self) -> dict[str, Any]:
        """Return the shape as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Shape:
        """Read what `to_json` gave."""
        return cls(**{**{each.name: record[each.name] for each in fields(cls)}, "contexts": tuple(record["contexts"])})


def spread(least: int, most: int, batch: int) -> tuple[int, ...]:
    """Return `batch` contexts from `least` to `most`, each the same factor longer than the one before it."""
    if batch == 1:
        return (most,)
    return tuple(round(least * (most / least) ** (place / (batch - 1))) for place in range(batch))


def _equal(contexts: Sequence[int]) -> tuple[int, ...]:
    """Return as many sequences of one length that hold the same bytes, to a page."""
    mean = sum(contexts) / len(contexts)
    return (max(1, round(mean)),) * len(contexts)


def _decode(name: str, batch: int, context: int, q_heads: int, kv_heads: int, head_size: int) -> Shape:
    return Shape(name, "decode", (context,) * batch, q_heads, kv_heads, head_size)


def _write(name: str, tokens: int, kv_heads: int, head_size: int) -> Shape:
    return Shape(name, "write", (tokens,), kv_heads, kv_heads, head_size)


RAGGED = spread(17, 131072, 64)

DECODE = (
    _decode("phi3-mini b32 1k", 32, 1088, 32, 32, 96),
    _decode("phi3-mini b32 4k", 32, 4032, 32, 32, 96),
    _decode("llama8b b1 128k", 1, 131072, 32, 8, 128),
    _decode("llama8b b8 32k", 8, 32768, 32, 8, 128),
    _decode("llama8b b32 8k", 32, 8192, 32, 8, 128),
    _decode("llama8b b64 2k", 64, 2048, 32, 8, 128),
    _decode("llama70b-tp8 b64 8k", 64, 8192, 8, 1, 128),
    _decode("qwen-7b g7 b32 8k", 32, 8192, 28, 4, 128),
    _decode("gemma hd256 b16 8k", 16, 8192, 16, 8, 256),
    _decode("hd64 b32 8k", 32, 8192, 32, 8, 64),
    _decode("hd80 b32 4k mha", 32, 4096, 32, 32, 80),
    _decode("hd192 b16 8k", 16, 8192, 32, 8, 192),
)
WRITE = (
    _write("write phi3-mini 32", 32, 32, 96),
    _write("write llama8b 64", 64, 8, 128),
    _write("write llama8b 8k", 8192, 8, 128),
    _write("write phi3-mini 8k", 8192, 32, 96),
    _write("write llama8b 16k", 16384, 8, 128),
)
OTHERS = (
    Shape("llama8b prefill b4 4k", "prefill", (4096,) * 4, 32, 8, 128),
    Shape("llama8b chunk 2k of 32k", "prefill", (32768,), 32, 8, 128, chunk=2048),
    Shape("llama8b verify b32 8k", "verify", (8192,) * 32, 32, 8, 128),
    Shape("llama8b ragged b64", "decode", RAGGED, 32, 8, 128),
    Shape("llama8b as many bytes, equal", "decode", _equal(RAGGED), 32, 8, 128),
)
CARD = (*DECODE, *WRITE, *OTHERS)
"""What `kvreg bench` measures on a card when no shape is asked for."""

HOST = (
    _decode("phi3-mini b2 1k", 2, 1088, 32, 32, 96),
    _decode("llama8b b4 1k", 4, 1024, 32, 8, 128),
    _write("write llama8b 32", 32, 8, 128),
    Shape("llama8b prefill b1 256", "prefill", (256,), 32, 8, 128),
    Shape("llama8b chunk 64 of 512", "prefill", (512,), 32, 8, 128, chunk=64),
    Shape("llama8b verify b2 512", "verify", (512,) * 2, 32, 8, 128),
    Shape("llama8b ragged b8", "decode", spread(17, 2048, 8), 32, 8, 128),
)
"""The same on the cpu device, where a card's shapes take minutes."""

SMOKE = (
    Shape("smoke decode", "decode", (64, 33), 4, 2, 64),
    Shape("smoke verify", "verify", (64, 3), 4, 2, 64),
    Shape("smoke prefill", "prefill", (48,), 4, 2, 64),
    Shape("smoke write", "write", (32,), 2, 2, 64),
    Shape("smoke chunk", "prefill", (48,), 4, 2, 64, chunk=17),
)
"""Shapes that try the path in a second on any machine; their times mean nothing."""


def asked(
    work: Work,
    *,
    batch: int,
    context: int,
    q_heads: int,
    kv_heads: int,
    head_size: int,
    page: int,
    ragged: str | None,
    chunk: int = 0,
) -> Shape:
    """Return the shape of flags; a write takes `batch` x `context` as its tokens, prefill alone a `chunk`.

    Raises UsageError for query heads that KV heads do not divide, a `ragged` that is not LEAST:MOSTxBATCH, or a chunk
    that no context holds.
    """
    if q_heads % kv_heads:
        raise UsageError(
            wrong(
                "--q-heads",
                required=f"a multiple of the {kv_heads} KV heads",
                found=str(q_heads),
                remedy="change one of the two",
            )
        )
    contexts = (context,) * batch if ragged is None else spread(*_ragged(ragged))
    if chunk > max(contexts):
        raise UsageError(
            wrong(
                "--chunk",
                required=f"at most {max(contexts)} tokens, the longest context",
                found=str(chunk),
                remedy="name fewer, or a larger --context",
            )
        )
    if work == "write":
        contexts = (sum(contexts),)
    shape = Shape("", work, contexts, q_heads, kv_heads, head_size, page, chunk if work == "prefill" else 0)
    return replace(shape, name=f"{work} {shape.size} d{head_size}")


def _ragged(text: str) -> tuple[int, int, int]:
    match = _RAGGED.fullmatch(text.strip())
    if match is not None:
        least, most, batch = (int(match[name]) for name in ("least", "most", "batch"))
        if least <= most <= LARGEST and batch <= MOST_AT_ONCE and (batch > 1 or least == most):
            return least, most, batch
    raise UsageError(
        wrong(
            "--ragged",
            required=f"LEAST:MOSTxBATCH, the least context first, of 2 to {MOST_AT_ONCE} sequences",
            found=repr(text),
            remedy="write 17:131072x64",
        )
    )
