"""From which context on a mode pays."""

from __future__ import annotations

from collections.abc import Mapping

from kvreg.bench import pays
from kvreg.bench.pays import Heads
from kvreg.bench.results import Compared, Row, row_of
from kvreg.bench.subjects import Subject
from kvreg.core.modes import Mode

INT4 = Mode.INT4_PER_TOKEN_HEAD
HEADS = Heads(32, 8, 128)


def row(shape, maker: str, mode: Mode, us: float) -> Row:
    return row_of(shape, Subject(maker, mode.value, f"{maker} {mode}"), {"status": "ok", "us": us, "e": 1e-3})


def swept(int4: Mapping[int, float], *, bf16: float = 100.0, batch: int = 1) -> list[Compared]:
    """Return points at which int4 takes so many microseconds by context, and the fastest bf16 always as many."""
    return [
        Compared(
            shape,
            (
                row(shape, "kvreg", Mode.NONE, 2 * bf16),
                row(shape, "sdpa", Mode.NONE, bf16),
                *([row(shape, "kvreg", INT4, int4[context])] if (context := shape.contexts[0]) in int4 else []),
            ),
            None,
        )
        for shape in pays.sweep([HEADS], [batch], [256, 1024, 4096])
    ]


def test_it_pays_from_the_least_context_behind_which_it_stays_faster() -> None:
    (answer,) = pays.answers(swept({256: 120.0, 1024: 80.0, 4096: 50.0}), [INT4])

    assert (answer.least_context, answer.ratio_there) == (1024, 1.25)
    assert (answer.longest, answer.ratio_at_longest, answer.best_bf16) == (4096, 2.0, "sdpa none")


def test_a_lucky_short_context_before_a_slower_one_does_not_count() -> None:
    (answer,) = pays.answers(swept({256: 80.0, 1024: 101.0, 4096: 50.0}), [INT4])

    assert answer.least_context == 4096


def test_a_mode_that_is_slower_at_the_longest_context_pays_nowhere() -> None:
    (answer,) = pays.answers(swept({256: 80.0, 1024: 80.0, 4096: 101.0}), [INT4])

    assert answer.least_context is None
    assert answer.ratio_at_longest < 1


def test_points_without_a_time_are_left_out_and_batches_answer_each_for_itself() -> None:
    points = [*swept({256: 50.0, 1024: 50.0}), *swept({4096: 200.0}, batch=8), *swept({}, batch=64)]

    answers = pays.answers(points, [Mode.NONE, INT4])

    assert [(each.batch, each.least_context, each.longest) for each in answers] == [(1, 256, 1024), (8, None, 4096)]


def test_a_point_whose_bf16_cache_is_too_large_is_left_out() -> None:
    shapes = list(pays.sweep(pays.HEADS, pays.BATCHES, pays.CONTEXTS))

    assert {shape.contexts[0] for shape in shapes} == set(pays.CONTEXTS)
    assert {len(shape.contexts) for shape in shapes} == set(pays.BATCHES)
    assert max(shape.tokens * 4 * shape.head_size * shape.kv_heads for shape in shapes) <= pays.MOST_BYTES
    assert len({shape.name for shape in shapes}) == len(shapes)
