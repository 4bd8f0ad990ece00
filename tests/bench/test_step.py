"""A whole decode step: what it computes, what is believed of it, and which models it can be of. On the cpu device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvreg.bench import material as materials
from kvreg.bench.driver import Driver
from kvreg.bench.step import caches, models, network, results, running, shapes
from kvreg.bench.step.models import SMOKE
from kvreg.bench.subjects import Planned, Refusal, Subject
from kvreg.core import resolve
from kvreg.core.errors import BadFile, Refused, UsageError
from kvreg.core.modes import Mode
from kvreg_tuning.child import load
from kvreg_tuning.pool import Task
from kvreg_tuning.worker import Outcome

CPU = resolve.resolve("cpu").device
STEP = shapes.StepShape(replace(SMOKE, layers=1), 2, 40)
INT4, SDPA = "torch-int4-decode@1", "SDPA bf16, dense"
PHI3 = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "vocab_size": 32064,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "max_position_embeddings": 4096,
    "sliding_window": 2047,
}


class View:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def stage(self, name: str, total: int, done: int) -> None:
        pass

    def advance(self, subject: str, line: Any) -> None:
        self.notes.append(f"{subject}: {line['status']}")

    def note(self, text: str) -> None:
        self.notes.append(text)


def run(planned: Planned, ends: str = "", view: View | None = None) -> results.StepResults:
    """Run in this process; a task with several subjects ends as `ends` says."""

    def outcomes(tasks: Sequence[Task], workers: int) -> Iterator[tuple[int, Outcome]]:
        for index, task in enumerate(tasks):
            arguments = json.loads(json.dumps(dict(task.arguments)))
            if ends and len(arguments["subjects"]) > 1:
                yield index, Outcome(ends, error="no room")  # type: ignore[arg-type]
            else:
                yield index, Outcome("ok", value=load(task.function)(**arguments))

    driver = Driver("cpu", "cpu", None, outcomes, lambda outcome: None, view or View())
    return running.run(driver, STEP, planned, list(Mode))


def planned(*modes: Mode) -> Planned:
    return shapes.plan(STEP, CPU, modes, every=True)


def test_each_kind_of_cache_gives_the_step_of_bf16_within_what_its_mode_loses() -> None:
    found = run(planned(Mode.NONE, Mode.INT4_PER_TOKEN_HEAD))
    rows = {row.kernel: row for row in found.rows}

    assert [row.kernel for row in found.rows] == ["torch-none-decode@1", SDPA, INT4]
    for row in found.rows:
        assert (row.status, row.detail, row.method) == ("ok", "", "host")
        assert 0 < row.rest_us < 10 * row.us
        assert 0 < row.e < 5e-3
        assert found.tokens_per_second(row) == pytest.approx(2e6 / row.us)
    assert rows["torch-none-decode@1"].hidden == 0
    assert 0 < rows[SDPA].hidden < 0.02
    assert rows[SDPA].hidden < rows[INT4].hidden < 0.2
    assert rows[SDPA].stored == rows["torch-none-decode@1"].stored == 0
    assert 0.01 < rows[INT4].stored < results.LARGEST_STORED
    assert rows[INT4].variants == {"write": "torch-int4-write@1", "decode": INT4}
    # 2 sequences of 3 pages of 16 slots, 2 KV heads of 64: K and V of 64 bf16 each, or 32 bytes and a scale.
    assert rows[SDPA].cache_bytes == 2 * 48 * 2 * 256
    assert rows[INT4].cache_bytes == 2 * 48 * 2 * 2 * 36


def test_the_step_is_that_of_a_decoder_written_out_in_double_precision() -> None:
    model, batch, context = SMOKE, 2, 40
    material = materials.build(shapes.StepShape(model, batch, context).decode, "cpu")
    dense = caches.Dense(model.layers, material)
    rows = []
    for layer in range(model.layers):
        material.k.normal_()
        material.v.normal_()
        dense.fill(layer, material)
        rows.append((material.k.double().view(batch, context, 2, 64), material.v.double().view(batch, context, 2, 64)))
    built = network.build(model, batch, context - 1, "cpu")
    step = network.Step(built, dense)

    step()

    due = _written_out(built, rows, context - 1)
    assert float((step.hidden.double() - due).norm() / due.norm()) < 0.02
    logits = due @ built.head.double().t()
    assert float((step.logits.double() - logits).norm() / logits.norm()) < 0.02


def _written_out(built: network.Network, rows: Any, position: int) -> torch.Tensor:
    model, x = built.model, built.embedded.double()
    turns = position * network.ROPE_BASE ** -(torch.arange(32, dtype=torch.float64) / 32)

    def norm(y: torch.Tensor) -> torch.Tensor:
        return y / (y.square().mean(-1, keepdim=True) + network.EPSILON).sqrt()

    def turned(y: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(y[..., :32], y[..., 32:]) * torch.polar(torch.ones(32, dtype=torch.float64), turns)
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    for layer, (k, v) in zip(built.layers, rows, strict=True):
        heads = (norm(x) @ layer.qkv.double().t()).view(len(x), -1, model.head_size)
        q = turned(heads[:, : model.q_heads])
        k[:, -1], v[:, -1] = turned(heads[:, model.q_heads : -model.kv_heads]), heads[:, -model.kv_heads :]
        of = torch.arange(model.q_heads) // (model.q_heads // model.kv_heads)
        weights = torch.einsum("bhd,bthd->bht", q, k[:, :, of]).mul(model.head_size**-0.5).softmax(-1)
        x = x + torch.einsum("bht,bthd->bhd", weights, v[:, :, of]).flatten(1) @ layer.out.double().t()
        gate, up = (norm(x) @ layer.gate_up.double().t()).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ layer.down.double().t()
    return norm(x)


def test_a_step_whose_write_or_attention_did_nothing_is_found() -> None:
    material = materials.build(STEP.decode, "cpu")
    (subject,) = [each for each in planned(Mode.INT4_PER_TOKEN_HEAD).subjects if each.name == INT4]
    made = caches.make(subject, 1, material, CPU)
    made.fill(0, material)
    step = network.Step(network.build(STEP.model, STEP.batch, STEP.context - 1, "cpu"), made)
    step()
    made.forget()
    step.forget()

    before = made.errors(step, material)
    step()
    after = made.errors(step, material)

    assert before == (float("inf"), pytest.approx(1.0))  # an output that is no number, and rows of zeros
    assert after[0] < 5e-3
    assert after[1] < results.LARGEST_STORED


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"finite": False}, "finite logits"),
        ({"e": 0.02}, "e at most 0.01"),
        ({"e": float("nan")}, "e at most 0.01"),
        ({"stored": 1.0}, "newest rows within 0.25"),
    ],
)
def test_a_step_that_cannot_be_believed_is_wrong_and_no_yardstick(changes: dict[str, Any], says: str) -> None:
    good = {"status": "ok", "us": 100.0, "rest_us": 60.0, "finite": True, "e": 1e-3, "stored": 0.0}
    bad = results.row_of(Subject("sdpa", "none", SDPA), {**good, "us": 1.0, **changes})
    bf16 = results.row_of(Subject("kvreg", "none", "a"), good)
    int4 = results.row_of(Subject("kvreg", "int4_per_token_head", "b"), {**good, "us": 80.0, "rest_us": 60.0})
    found = results.StepResults(STEP, (bad, bf16, int4))

    assert bad.status == "wrong"
    assert says in bad.detail
    assert found.best is bf16
    assert (found.ratio(bad), found.ratio(int4)) == (None, 1.25)
    assert (int4.attention_us, int4.attention_share) == (20.0, 0.25)


def test_caches_that_have_no_room_together_are_timed_one_by_one_and_say_so() -> None:
    view = View()
    of = planned(Mode.NONE)

    found = run(Planned(of.shape, of.subjects, (Refusal("fp8_per_tensor", "no evidence"),)), "error", view)

    assert [(row.kernel, row.status, row.alone) for row in found.rows] == [
        ("torch-none-decode@1", "ok", True),
        (SDPA, "ok", True),
        ("", "refused", False),
    ]
    assert any("no room; the kinds of cache are taken one by one" in note for note in view.notes)
    assert json.loads(json.dumps(found.to_json()))["rows"][0]["ratio"] is not None


def test_a_model_is_read_from_its_config_and_phi3_mini_is_the_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PHI3))

    read = models.model_of(str(tmp_path), 1088)

    assert replace(read, name="phi3-mini") == models.model_of("phi3-mini", 1088)
    assert read.weights + 32064 * 3072 == 3_821_079_552  # the parameters of Phi-3-mini, its embedding among them
    assert shapes.StepShape.from_json(json.loads(json.dumps(STEP.to_json()))) == STEP


@pytest.mark.parametrize(
    ("changes", "context", "error", "says"),
    [
        ({}, 3000, Refused, "causal attention alone at 3000 tokens, found window"),
        ({"num_local_experts": 8}, 1088, Refused, "found 8 experts"),
        ({"intermediate_size": None}, 1088, BadFile, "a field intermediate_size"),
        ({"vocab_size": None}, 1088, BadFile, "a field vocab_size"),
        ({"is_encoder_decoder": True}, 1088, Refused, "an encoder-decoder"),
        (
            {"model_type": "x", "layer_types": ["full_attention", "sliding_attention"] * 16, "sliding_window": 512},
            1088,
            Refused,
            "2 kinds",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_model_that_is_no_such_step_is_refused_with_what_it_has(
    changes: dict[str, Any], context: int, error: type[Exception], says: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PHI3, **changes}))

    with pytest.raises(error, match=says):
        models.model_of(str(tmp_path), context)


def test_a_word_that_is_no_model_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="phi3-mini, llama3-8b or a folder"):
        models.model_of("gpt9", 1088)
