"""What the flags of `kvreg bench` come to: modes, shapes, and the kernels that are measured at each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvreg.core import asking
from kvreg.core.errors import Refused, UsageError, wrong

if TYPE_CHECKING:
    from kvreg.bench.pays import Heads
    from kvreg.bench.shapes import Shape
    from kvreg.bench.subjects import Planned
    from kvreg.core.modes import Mode
    from kvreg.validation.machine import Machine

BATCH, CONTEXT = 32, 8192
Q_HEADS, KV_HEADS, HEAD_SIZE, PAGE = 32, 8, 128, 16
"""What select assumes, too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of one call, by the names that click gives them."""

    device: str | None = None
    modes: Sequence[str] = ()
    works: Sequence[str] = ()
    batch: int | None = None
    context: int | None = None
    q_heads: int | None = None
    kv_heads: int | None = None
    head_sizes: Sequence[int] = ()
    page: int | None = None
    ragged: str | None = None
    chunk: int | None = None
    only: Sequence[str] = ()
    every: bool = False
    peer: Path | None = None
    pays: bool = False
    step: str | None = None
    layers: int | None = None
    host: bool = False
    plot: Path | None = None
    as_json: bool = False

    @property
    def names_heads(self) -> bool:
        """Whether flags say which heads a model has."""
        return bool(self.q_heads or self.kv_heads or self.head_sizes)

    @property
    def names_a_shape(self) -> bool:
        """Whether flags say what is measured, instead of the table."""
        sizes = (self.batch, self.context, self.page, self.ragged, self.chunk)
        return self.names_heads or any(each is not None for each in sizes)


def modes_of(asked: Asked) -> tuple[Mode, ...]:
    """Return the modes asked for; raises UsageError for a word that is none."""
    from kvreg.bench.subjects import DEFAULT_MODES
    from kvreg.core.modes import Mode

    named: list[Mode] = []
    for word in asked.modes:
        mode = asking.parse_mode(word)
        named += [mode] if mode is not None else list(Mode)
    assumed = (Mode.INT4_PER_TOKEN_HEAD,) if asked.pays else DEFAULT_MODES
    return tuple(dict.fromkeys(named)) or assumed


def plan(asked: Asked, machine: Machine, modes: Sequence[Mode]) -> list[Planned]:
    """Return the shapes and what is measured at each; raises UsageError for flags that do not go together.

    Raises Refused where no variant of kvreg is measured at any of them in any of `modes`: kvreg's bf16, which is
    always there to compare with, answers nobody who asked for another mode.
    """
    from kvreg.bench import pays, subjects

    _require_together(asked)
    if asked.peer is not None:
        _require_kernels(asked.peer)
    shapes = tuple(_sweep(asked, machine, modes)) if asked.pays else _shapes(asked, machine)
    make = pays.plan if asked.pays else subjects.plan
    vllm = asked.peer is not None
    planned = [make(shape, machine.device, modes, every=asked.every, vllm=vllm) for shape in shapes]
    if any(subject.maker == "kvreg" and subject.mode in modes for each in planned for subject in each.subjects):
        return planned
    first, *others = (refusal for each in planned for refusal in each.refusals if refusal.mode in modes)
    more = f" (and {len(others)} more)" if others else ""
    raise Refused(f"bench: {first.reason}{more}; or take --all-variants, which asks for no evidence")


def _require_together(asked: Asked) -> None:
    """Raise UsageError for flags of which one would be left out without a word."""
    if asked.layers is not None and asked.step is None:
        raise UsageError(
            wrong("--layers", required="--step beside it", found="none", remedy="name a model, or leave it out")
        )
    if asked.host:
        refuse_beside("--host", "calls of the table or of flags", pays=asked.pays, plot=asked.plot)
    if asked.ragged is not None:
        refuse_beside("--ragged", "its own sequences and contexts", batch=asked.batch, context=asked.context)
    if asked.chunk is not None and asked.step is None and set(asked.works) != {"prefill"}:
        found = " ".join(f"--op {work}" for work in asked.works) or "none"
        remedy = "take that, or leave one out"
        raise UsageError(wrong("--chunk", required="--op prefill alone beside it", found=found, remedy=remedy))


def refuse_beside(flag: str, required: str, **others: object) -> None:
    """Raise UsageError where one of `others`, values by the names of their flags, was given beside `flag`."""
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if given:
        raise UsageError(wrong(flag, required=required, found=" ".join(given), remedy="leave one out"))


def _require_kernels(folder: Path) -> None:
    from kvreg.bench.vllm_kernels import FILES

    missing = [file for file in FILES.values() if not (folder / file).is_file()]
    if missing:
        raise UsageError(
            wrong(
                f"--peer {folder}",
                required=", ".join(FILES.values()),
                found=f"no {', '.join(missing)}",
                remedy="docs/bench.md says where they come from",
            )
        )


def _shapes(asked: Asked, machine: Machine) -> Sequence[Shape]:
    from kvreg.bench import shapes

    if asked.names_a_shape:
        if asked.only:
            raise UsageError(
                wrong("--shape", required="the table alone", found="flags for a shape too", remedy="leave one out")
            )
        works = [work for work in shapes.WORKS if not asked.works or work in asked.works]
        return [
            shapes.asked(
                work,
                batch=asked.batch or BATCH,
                context=asked.context or CONTEXT,
                q_heads=asked.q_heads or Q_HEADS,
                kv_heads=asked.kv_heads or KV_HEADS,
                head_size=size,
                page=asked.page or PAGE,
                ragged=asked.ragged,
                chunk=asked.chunk or 0,
            )
            for size in _head_sizes(asked)
            for work in works
        ]
    return _chosen(asked, _table(asked, machine))


def _chosen(asked: Asked, table: Sequence[Shape]) -> Sequence[Shape]:
    """Return the shapes of a table that --op and --shape leave; raises UsageError, for the one to blame, for none."""
    of_works = [shape for shape in table if not asked.works or shape.work in asked.works]
    if not of_works:
        works = ", ".join(dict.fromkeys(shape.work for shape in table))
        remedy = "take one of them, or name a shape with --batch and --context"
        required = f"one of {works} without flags for a shape"
        raise UsageError(wrong("--op", required=required, found=" ".join(asked.works), remedy=remedy))
    chosen = [shape for shape in of_works if not asked.only or any(words in shape.name for words in asked.only)]
    if not chosen:
        names = ", ".join(shape.name for shape in of_works)
        raise UsageError(
            wrong("--shape", required=f"words of one of: {names}", found=" ".join(asked.only), remedy="name another")
        )
    return chosen


def _table(asked: Asked, machine: Machine) -> Sequence[Shape]:
    from kvreg.bench import host, shapes

    if asked.host:
        return host.CARD if machine.is_card else host.HOST
    return shapes.CARD if machine.is_card else shapes.HOST


def _sweep(asked: Asked, machine: Machine, modes: Sequence[Mode]) -> Iterator[Shape]:
    from kvreg.bench import pays
    from kvreg.core.modes import Mode

    refuse_beside("--pays", "decodes of equal length", op=asked.works, shape=asked.only, ragged=asked.ragged)
    if list(modes) == [Mode.NONE]:
        raise UsageError(
            wrong("--pays", required="a quantized mode", found=Mode.NONE, remedy="name another, or none at all")
        )
    batches, contexts = (pays.BATCHES, pays.CONTEXTS) if machine.is_card else (pays.HOST_BATCHES, pays.HOST_CONTEXTS)
    some = [
        [each for each in values if most is None or each <= most]
        for values, most in ((batches, asked.batch), (contexts, asked.context))
    ]
    if not all(some):
        raise UsageError(
            wrong(
                "--context",
                required=f"at least {contexts[0]} with --pays",
                found=str(asked.context),
                remedy="name a larger one",
            )
        )
    return pays.sweep(_heads(asked), some[0], some[1], asked.page or PAGE)


def _head_sizes(asked: Asked) -> Sequence[int]:
    return tuple(dict.fromkeys(asked.head_sizes)) or (HEAD_SIZE,)


def _heads(asked: Asked) -> Sequence[Heads]:
    from kvreg.bench import pays

    if not asked.names_heads:
        return pays.HEADS
    q_heads, kv_heads = asked.q_heads or Q_HEADS, asked.kv_heads or KV_HEADS
    if q_heads % kv_heads:
        raise UsageError(
            wrong(
                "--q-heads",
                required=f"a multiple of the {kv_heads} KV heads",
                found=str(q_heads),
                remedy="change one of the two",
            )
        )
    return [pays.Heads(q_heads, kv_heads, size) for size in _head_sizes(asked)]
