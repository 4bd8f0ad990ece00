"""Robustness: each check is green over right kernels and red over a planted fault; on a card all of them are run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from kvreg.core import resolve
from kvreg.core.errors import UsageError
from kvreg.core.modes import Mode
from kvreg.runtime.launchers import load
from kvreg.validation.gpu import enduring
from kvreg.validation.gpu.asked import Options
from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import Session
from kvreg.validation.journal import Journal
from kvreg.validation.machine import machine_for
from kvreg.validation.robust import far, graphs, inputs, streams, suite, tuning, wrong_calls
from kvreg.validation.robust.__main__ import main
from kvreg.validation.robust.findings import Finding
from kvreg.validation.robust.hazards import hazards_of, survived, unlike
from kvreg.validation.robust.lineups import line_up, line_ups
from kvreg.validation.unproven import Place, place_of
from kvreg_tuning.worker import Outcome

NONE = ("cpu", "none", "torch-none-decode@1")
INT4 = ("cpu", "int4_per_token_head", "torch-int4-decode@1")
H200 = Place("cuda:0", resolve.resolve("h200"), "cuda:0")

Plant = Callable[[str, Callable[[Any], Any]], None]


@pytest.fixture
def plant(monkeypatch) -> Iterator[Plant]:
    """Return a function that puts a fault into a launcher: `plant("kvreg_cpu.attend:attend_none", fault)`.

    `fault` takes the right launcher's call and returns the wrong one.
    """

    def put(path: str, fault: Callable[[Any], Any]) -> None:
        launcher = load(path)
        if isinstance(launcher, type(lambda: 0)):
            monkeypatch.setattr(path.replace(":", "."), fault(launcher))
            load.cache_clear()
        else:
            monkeypatch.setattr(type(launcher), "__call__", fault(type(launcher).__call__))

    yield put
    load.cache_clear()


def failures(record: dict[str, Any]) -> str:
    skip_where_too_small(record)
    assert record["status"] == "failed", record
    return "\n".join(record["failures"])


def skip_where_too_small(record: dict[str, Any]) -> None:
    if record["status"] == "skipped":
        pytest.skip(record["detail"])


@pytest.mark.parametrize("check", [far.caches, far.rows, graphs.replays, streams.side_by_side, inputs.odd])
@pytest.mark.parametrize("line_up_", [NONE, INT4], ids=["none", "int4"])
def test_plain_torch_survives_every_check(check, line_up_):
    found = check(*line_up_)

    skip_where_too_small(found)
    assert (found["status"], found["failures"]) == ("ok", ())


@pytest.mark.parametrize(
    ("mode", "decode", "layout", "kind"),
    [
        ("int4_per_token_head", "triton-int4-decode@1", "planar.1", "decode"),
        ("none", "triton-none-decode@1", "inline.1", "prefill"),
    ],
)
def test_triton_reaches_pages_beyond_every_32_bit_offset(mode, decode, layout, kind):
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")

    of, size = line_up("interpreter", mode, decode), 1 << 33
    reason = far.lacking(of, size)
    if reason is not None:
        pytest.skip(reason)

    assert list(far.beyond(of, layout, size, kind)) == []


def wrapped(offset: torch.Tensor, unit: int) -> torch.Tensor:
    """What a 32-bit byte offset leaves of numbers of things of `unit` bytes; never negative."""
    return offset % ((1 << 32) // unit)


@pytest.mark.parametrize("kind", ["write", "attend"])
def test_an_offset_of_32_bits_is_found_in_a_large_cache(kind, plant):
    page_bytes = 8192  # two KV heads of 64 bf16 channels, 16 tokens

    def write(right):
        return lambda cache, k, v, slots, config: right(
            cache, k, v, torch.where(slots < 0, slots, wrapped(slots // 16, page_bytes) * 16 + slots % 16), config
        )

    def attend(right):
        def wrong(self, call, config):
            right(self, replace(call, page_table=wrapped(call.page_table, page_bytes)), config)

        return wrong

    if kind == "write":
        plant("kvreg_cpu.write:write_none", write)
    else:
        plant("kvreg_cpu.attend:attend_none", attend)

    text = failures(far.caches(*NONE, sizes=(1 << 33,)))

    assert ("bytes of the pages" if kind == "write" else "output: required those of the small one") in text


def test_rows_that_are_read_by_a_32_bit_offset_are_found(plant):
    def write(right):
        def wrong(cache, k, v, slots, config):
            last = torch.arange(k.shape[0]) * k.stride(0)
            near = torch.where(last < 1 << 31, 1.0, 0.0)[:, None, None].to(k.dtype)
            right(cache, k * near, v, slots, config)

        return wrong

    plant("kvreg_cpu.write:write_none", write)

    assert "bytes of the cache: required those of the small one" in failures(far.rows(*NONE))


def test_a_step_that_remembers_the_lengths_of_its_first_call_is_found(plant):
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # kept alive, so that no other tensor gets the id

    def attend(right):
        def wrong(self, call, config):
            _, lengths = known.setdefault(id(call.seq_lens), (call.seq_lens, call.seq_lens.clone()))
            right(self, replace(call, seq_lens=lengths), config)

        return wrong

    plant("kvreg_cpu.attend:attend_none", attend)

    assert "decode, replay 2, output of layer 1: required the bits of the eager call" in failures(
        graphs.replays(*NONE)
    )


def test_steps_whose_sum_of_lengths_is_known_are_replayed_in_equal_shares(plant, monkeypatch):
    shares = []

    def attend(right):
        def noted(self, call, config):
            shares.append((len(call.seq_lens), call.split.shares))
            right(self, call, config)

        return noted

    plant("kvreg_cpu.attend:attend_none", attend)
    offered = type(load("kvreg_cpu.attend:attend_none"))
    for name, number in {"splits": 40, "chunk": 16, "shares": 9}.items():
        monkeypatch.setattr(offered, name, lambda *_, number=number: number, raising=False)

    assert graphs.replays(*NONE)["status"] == "ok"
    assert {shared for n, shared in shares if n == 5} == {0, 9}


def test_a_check_that_a_device_is_too_small_for_is_skipped_with_both_sizes(monkeypatch):
    monkeypatch.setattr(far, "SLACK", 1 << 50)

    found = far.caches(*NONE)

    assert found["status"] == "skipped"
    assert found["detail"].startswith("needs 1048584.0 GiB of memory, found ")


def test_a_schedule_of_steps_has_what_a_server_does_between_replays():
    for rows in (5, 12):
        steps = graphs.schedule(place_of("cpu"), graphs.Shape("any", 4 if rows == 12 else 5, rows, 300), 8)
        lengths = torch.stack([step.seq_lens for step in steps])

        assert len({tuple(step.cu_q.tolist()) for step in steps}) == (1 if rows == 5 else 8)
        assert (lengths.amax(0) > lengths.amin(0)).sum() >= 2
        assert int(lengths.max()) <= 300
        assert (lengths == 0).any(1).sum() >= 4
        assert all((step.slots == -1).any() for step in steps)
        assert not torch.equal(steps[0].page_table, steps[1].page_table)
        written = [slot for step in steps for slot in step.slots.tolist() if slot >= 0]
        assert len(written) == len(set(written))


def test_a_result_that_changes_from_call_to_call_is_found(plant):
    calls = []

    def attend(right):
        def wrong(self, call, config):
            right(self, call, config)
            calls.append(call)
            if len(calls) == 7:
                call.out[0, 0, 0] += 1

        return wrong

    plant("kvreg_cpu.attend:attend_none", attend)

    assert "two attentions, decode: required the serial bits in 20 results, found 1 others" in failures(
        streams.side_by_side(*NONE)
    )


def test_a_reader_that_does_not_wait_for_the_write_is_found(plant):
    kept: list[tuple[Any, ...]] = []

    def write(right):
        def wrong(*arguments):  # every write but the first two comes one call late
            kept.append(arguments)
            if len(kept) <= 4:
                right(*arguments)
            else:
                right(*kept[-2])

        return wrong

    plant("kvreg_cpu.write:write_none", write)

    assert "write, then attend: required the serial bits" in failures(
        streams.concurrent(replace(line_up(*NONE), features=("causal",))).to_json()
    )


def afterwards(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An attention whose output is changed when it is done."""

    def fault(right):
        def wrong(self, call, config):
            right(self, call, config)
            change(call)

        return wrong

    return fault


def forgiving(right):
    """An attention that takes zeros for values that are not finite."""

    def wrong(self, call, config):
        right(self, replace(call, cache=replace(call.cache, v=call.cache.v.nan_to_num(0.0, 0.0, 0.0))), config)

    return wrong


def overrun(call) -> None:
    """Store one value behind the last row of an output that lies inside a wider tensor."""
    if not call.out.is_contiguous():
        last = sum((size - 1) * step for size, step in zip(call.out.shape, call.out.stride(), strict=True))
        call.out.as_strided((1,), (1,), call.out.storage_offset() + last + 1).zero_()


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (inputs.constant_rows, afterwards(lambda call: call.out.add_(1e-3))),
        (inputs.stored_value_not_finite, forgiving),
        (inputs.query_row_not_finite, afterwards(lambda call: call.out.mul_(1 + call.q.isnan().sum()))),
        (inputs.outside_the_window, afterwards(lambda call: call.out.add_(call.cache.v.isposinf().sum()))),
        (inputs.strided_output, afterwards(overrun)),
        (inputs.pages_behind_the_last, afterwards(lambda call: call.out.add_(call.page_table.clamp(max=0).sum()))),
        (inputs.nothing, afterwards(lambda call: call.out.add_(1.0))),
    ],
    ids=lambda value: value.__name__,
)
def test_each_check_of_odd_inputs_finds_its_fault(check, fault, plant):
    assert list(check(line_up(*NONE))) == []

    plant("kvreg_cpu.attend:attend_none", fault)

    assert list(check(line_up(*NONE)))


def test_a_write_whose_bad_row_spoils_another_slot_is_found(plant):
    def spilling(right):
        def wrong(cache, k, v, slots, config):
            right(cache, k, v, slots, config)
            if not v.isfinite().all():
                cache.k[-1, -1] = 1.0

        return wrong

    plant("kvreg_cpu.write:write_none", spilling)

    assert any("no other slot's bytes" in text for text in inputs.stored_value_not_finite(line_up(*NONE)))


def test_a_wrong_call_that_is_accepted_or_stores_or_is_told_otherwise_is_found():
    name = "write: k in fp16"
    call, changed, error, words = wrong_calls.WRONG[name]

    def told(row) -> list[str]:
        return list(wrong_calls.wrong_call(wrong_calls.Calls(place_of("cpu")), row, name))

    assert told((call, changed, error, words)) == []
    assert told((call, dict, error, words)) == [f"{name}: required WrongDtype, found an accepted call"]
    assert told((call, changed, UsageError, words)) == [f"{name}: required UsageError, found WrongDtype"]
    assert "one line with purple" in told((call, changed, error, "purple"))[0]


def test_a_card_is_asked_every_wrong_call_but_those_whose_values_it_would_have_to_be_waited_for():
    assert wrong_calls.table_for(H200).keys() == wrong_calls.WRONG.keys()
    assert wrong_calls.table_for(place_of("cpu")).keys() == wrong_calls.WRONG.keys() | wrong_calls.WRONG_VALUES.keys()
    assert len(wrong_calls.WRONG) >= 140


def test_a_hazard_must_end_as_it_should_and_leave_the_device_in_order():
    read, loop = hazards_of(H200)
    illegal = Outcome("error", error="AcceleratorError: CUDA error: an illegal memory access was encountered")
    hung, served = Outcome("timeout", error="still running"), Outcome("ok", value=float(1 << 20))

    assert list(unlike(read, illegal, served, H200)) == []
    assert list(unlike(loop, hung, served, H200)) == []
    assert "required error, found ok" in next(unlike(read, Outcome("ok"), served, H200))
    assert "required an error of the device" in next(unlike(read, Outcome("error", error="KeyError: 3"), served, H200))
    assert "required timeout, found ok" in next(unlike(loop, Outcome("ok"), served, H200))
    assert "from the next task on cuda:0, found timeout" in next(unlike(loop, hung, hung, H200))
    lost = Outcome("error", error="CUDA error: no CUDA-capable device is detected")
    assert any("required the device to stay" in text for text in unlike(read, lost, served, H200))


def test_every_decode_variant_that_a_place_runs_is_lined_up():
    own = {each for each in line_ups(H200) if each[1].startswith("cuda-")}
    assert {mode for mode, _ in own} == {str(mode) for mode in Mode if mode is not Mode.NONE}
    assert not own & set(line_ups(place_of("interpreter")))
    assert len(line_ups(H200)) == len(Mode) + len(own)
    tasks = suite.tasks(H200)
    assert len(tasks) == 9 * 5 + 1
    assert len({suite.title(task) for task in tasks}) == len(tasks)
    assert len({task.bundle for task in tasks}) == 10


def test_a_card_without_fp8_is_asked_nothing_of_it():
    card = Place("cuda:0", resolve.resolve("rtx3090"), "cuda:0")

    assert {mode for mode, _ in line_ups(card)} == {"none", "int8_per_token_head", "int4_per_token_head"}
    assert "allocate" not in {row[0] for row in wrong_calls.table_for(card).values()}
    assert len(wrong_calls.table_for(card)) > 120


@pytest.fixture
def rig(tmp_path) -> Iterator[Callable[..., Rig]]:
    """Return a function that begins a call of ci/gpu, which may take so many seconds, over one journal."""
    with Journal(tmp_path / "journal.jsonl") as journal:

        def begin(limit_s: float | None, smoke: bool = True) -> Rig:
            options = Options(device="cpu", smoke=smoke, limit_s=limit_s)
            made = Rig(Session(options, tmp_path, tmp_path / "results.tar.gz"), machine_for("cpu"), journal)
            made.run.versions = {"torch": "any"}
            return made

        yield begin


def test_a_stage_that_is_cut_off_says_so_and_a_later_call_takes_what_is_known(rig):
    first, second = rig(0.0), rig(None)
    names = [f"{name} torch-none-decode@1" for name in suite.OF_LINE_UPS]

    assert enduring.robust(first) == ("cut off", "0 checks, 0 skipped")
    for name in names:
        enduring.keep(first, name, Finding("ok", "kept"))
    assert enduring.robust(second) == ("ok", "5 checks, 0 skipped")
    assert {each["check"]: each["detail"] for each in second.session.results["robust"]} == dict.fromkeys(names, "kept")


def test_checks_with_workers_of_their_own_and_random_calls_do_not_begin_without_time(rig):
    assert enduring.robust(rig(0.0, smoke=False)) == ("cut off", "0 checks, 0 skipped")


def test_the_command_says_what_it_could_not_try_and_names_a_check_that_is_none():
    skipped = CliRunner().invoke(main, ["--device", "cpu", "--only", "hazards", "--json"])
    unknown = CliRunner().invoke(main, ["--device", "cpu", "--only", "graph", "--json"])

    assert skipped.exit_code == 0
    (row,) = json.loads(skipped.stdout)["checks"]
    assert (row["check"], row["status"]) == ("hazards", "skipped")
    assert unknown.exit_code == 2
    assert "required caches or rows or graphs" in json.loads(unknown.stdout)["error"]["message"]


def test_a_task_without_an_answer_has_failed():
    assert suite.found(Outcome("crash", error="task: exit code 9")) == Finding(
        "failed", "no answer", ("crash: required an answer, found task: exit code 9",)
    )


@pytest.fixture
def card() -> Place:
    for kind in ("cuda", "xpu"):
        if getattr(torch, kind).is_available():
            return place_of(kind)
    pytest.skip("needs a card that torch sees")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*suite.OF_LINE_UPS, *suite.CALLS])
def test_kernels_on_a_card_survive_every_check(name, card):
    for task in suite.tasks(card, (name,)):
        module, function = task.function.split(":")
        found = getattr(__import__(module, fromlist=[function]), function)(**task.arguments)

        assert found["status"] in ("ok", "skipped"), (suite.title(task), found)


@pytest.mark.gpu
def test_hazards_on_a_card_end_as_typed_outcomes(card):
    found = survived(card)

    assert found.status == "ok", found


@pytest.mark.gpu
def test_a_tuning_run_on_a_card_survives_its_hazards(card):
    found = tuning.survived(card)

    assert found.status == "ok", found


@pytest.mark.long
def test_hazards_under_the_interpreter_end_as_typed_outcomes(tmp_path: Path):
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    found = survived(place_of("interpreter"))

    assert found.status == "ok", found
