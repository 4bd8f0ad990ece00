"""Selection over a made-up platform whose devices, kernels, traces and tuned entries are real files."""

from dataclasses import replace

import pytest

from kvreg.core.errors import Refused, UsageError
from kvreg.core.evidence import Tier
from kvreg.core.index import Index
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import Constraints

INT4 = "int4_per_token_head"


def codes(result):
    """Return the reason codes of every rejected variant."""
    return {reason.code for decision in result.decisions for reason in decision.reasons}


def note_codes(result):
    return {note.code for note in result.notes}


def test_a_variant_with_fresh_evidence_of_the_device_is_measured(workshop):
    workshop.validate("alpha")

    result = workshop.ask("alpha", INT4, 96).result

    assert result.tier is Tier.MEASURED
    assert {op: chosen.variant for op, chosen in result.ops.items()} == {
        Op.WRITE: "toy-int4-write@1",
        Op.DECODE: "toy-int4-decode@1",
        Op.PREFILL: "toy-int4-prefill@1",
    }
    assert result.ops[Op.DECODE].evidence.numerics == "device"
    assert result.format.rotation_block == 32


def test_without_evidence_a_variant_is_refused_with_the_command_that_lifts_it(workshop):
    result = workshop.ask("alpha", INT4, 96).results[0]

    assert result.verdict == "refused"
    assert codes(result) == {"evidence"}
    assert "kvreg validate --device alpha --mode int4_per_token_head --head-size 96" in result.reason


def test_a_refused_result_raises_when_its_winner_is_taken(workshop):
    with pytest.raises(Refused, match="int4_per_token_head on alpha"):
        _ = workshop.ask("alpha", INT4, 96).result


def test_evidence_counts_for_its_exact_head_size_only(workshop):
    workshop.validate("alpha", 96)

    assert workshop.ask("alpha", INT4, 104).results[0].verdict == "refused"


def test_evidence_of_another_card_of_the_arch_counts_as_arch_and_has_no_speed(workshop):
    workshop.validate("alpha")

    result = workshop.ask("beta", INT4, 96).result

    evidence = result.ops[Op.DECODE].evidence
    assert (evidence.numerics, evidence.speed, evidence.timings) == ("arch", "none", ())
    assert result.tier is Tier.MEASURED
    assert any("measured on alpha" in note.text for note in result.notes)


def test_evidence_of_another_arch_does_not_count(workshop):
    workshop.validate("alpha")

    result = workshop.ask("gamma", INT4, 96, dtype="fp16").results[0]

    assert codes(result) == {"evidence"}


def test_a_derived_device_takes_its_parents_evidence_as_arch(workshop):
    workshop.validate("alpha")

    result = workshop.ask("alpha-mini", INT4, 96).result

    assert result.ops[Op.DECODE].evidence.device == "alpha"
    assert result.ops[Op.DECODE].evidence.numerics == "arch"


def test_evidence_of_the_device_itself_goes_before_that_of_its_arch(workshop):
    workshop.validate("beta", ended="2026-12-24T10:01:00Z")
    workshop.validate("alpha")

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].evidence.device == "alpha"


def test_a_changed_kernel_makes_its_evidence_stale(workshop):
    workshop.validate("alpha")
    workshop.source.write_text(workshop.source.read_text().replace("x + 1", "x + 2"))

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert codes(result) == {"stale"}
    assert "kvreg validate --device alpha --stale" in result.reason


def test_a_changed_comment_leaves_evidence_fresh(workshop):
    workshop.validate("alpha")
    workshop.source.write_text(workshop.source.read_text().replace("x + 1", "x + 1  # one more"))

    assert workshop.ask("alpha", INT4, 96).results[0].verdict == "selected"


def test_fresh_evidence_of_the_arch_serves_where_the_devices_own_is_stale(workshop):
    workshop.validate("alpha", kernel_hash="0" * 64)
    workshop.validate("beta")

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].evidence.device == "beta"


def test_a_layout_that_the_trace_does_not_cover_is_not_validated(workshop):
    workshop.validate("alpha", layouts=["planar.1"])

    assert workshop.ask("alpha", INT4, 96, layout="planar.1").results[0].verdict == "selected"
    result = workshop.ask("alpha", INT4, 96, layout="inline.1").results[0]
    assert "required a trace with layout inline.1, found traces with planar.1" in result.reason
    unasked = workshop.ask("alpha", INT4, 96).results[0]
    assert "required a trace with layout planar.2, found traces with planar.1" in unasked.reason


def test_an_edited_trace_is_no_evidence_and_select_says_so(workshop):
    workshop.validate("alpha")
    path = next(workshop.backend.evidence_dir.glob("alpha/int4_per_token_head/*-decode-*.yaml"))
    path.write_text(path.read_text().replace("max_rel_error: 0.002", "max_rel_error: 0.001"))

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert result.verdict == "refused"
    assert any(note.code == "bad_trace" and "digest" in note.text for note in result.notes)


def test_an_edited_log_takes_its_trace_away(workshop):
    workshop.validate("alpha")
    path = next(workshop.backend.evidence_dir.glob("alpha/int4_per_token_head/*-write-*.jsonl.gz"))
    path.write_bytes(path.read_bytes() + b"more")

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert result.verdict == "refused"
    assert any(note.code == "bad_trace" and "log" in note.text for note in result.notes)


def windowed(workshop):
    """Give every variant the features window and sinks."""
    declared = Constraints(features=("causal", "window", "sinks", "multi_query_split"))
    workshop.offered = tuple(replace(each, constraints=declared) for each in workshop.offered)


def test_a_feature_that_the_trace_does_not_cover_is_refused_with_the_validating_command(workshop):
    windowed(workshop)
    workshop.validate("alpha")

    result = workshop.ask("alpha", INT4, 96, features=["causal", "window", "sinks"]).results[0]

    assert codes(result) == {"feature_evidence"}
    assert "required a trace that covers window, sinks, found alpha-int4_per_token_head-d96-decode-" in result.reason
    assert "`kvreg validate --device alpha --mode int4_per_token_head --head-size 96 --features`" in result.reason


def test_a_feature_that_the_trace_covers_is_selected(workshop):
    windowed(workshop)
    workshop.validate("alpha", features=["causal", "window"])

    assert workshop.ask("alpha", INT4, 96, features=["causal", "window"]).result.tier is Tier.MEASURED
    assert codes(workshop.ask("alpha", INT4, 96, features=["window", "sinks"]).results[0]) == {"feature_evidence"}


def test_a_feature_is_a_matter_of_decode_and_prefill_alone(workshop):
    windowed(workshop)
    for variant in workshop.offered:
        covered = None if variant.op is Op.WRITE else ["causal", "window"]
        workshop.trace(variant, "alpha", features=covered)

    result = workshop.ask("alpha", INT4, 96, features=["causal", "window"]).result

    assert result.ops[Op.WRITE].evidence.features == ("causal",)


def test_splitting_several_rows_is_a_matter_of_decode_alone(workshop):
    windowed(workshop)
    for variant in workshop.offered:
        several = ["causal", "multi_query_split"] if variant.op is Op.DECODE else ["causal"]
        workshop.trace(variant, "alpha", features=several)

    assert workshop.ask("alpha", INT4, 96, features=["multi_query_split"]).results[0].verdict == "selected"


def test_a_write_need_not_declare_what_readers_do(workshop):
    windowed(workshop)
    workshop.offered = tuple(
        replace(each, constraints=Constraints()) if each.op is Op.WRITE else each for each in workshop.offered
    )
    workshop.validate("alpha", features=["causal", "window"])

    assert workshop.ask("alpha", INT4, 96, features=["window"]).results[0].verdict == "selected"


def test_evidence_that_covers_the_features_goes_before_nearer_evidence_that_does_not(workshop):
    windowed(workshop)
    workshop.validate("alpha")
    workshop.validate("beta", features=["causal", "window"])

    result = workshop.ask("alpha", INT4, 96, features=["window"]).result

    assert result.ops[Op.DECODE].evidence.device == "beta"
    assert result.ops[Op.WRITE].evidence.device == "alpha"


def test_interpreted_evidence_needs_to_be_allowed(workshop):
    workshop.validate("alpha", numerics="interpreter", build="none", speed="none", timings=[])

    refused = workshop.ask("alpha", INT4, 96).results[0]
    allowed = workshop.ask("alpha", INT4, 96, allow=("interpreted",)).result

    assert "--allow interpreted" in refused.reason
    assert allowed.tier is Tier.INTERPRETED


def test_an_interpreter_proves_nothing_of_a_variant_that_needs_a_card(workshop):
    workshop.offered = tuple(replace(each, needs_card=True) for each in workshop.offered)
    workshop.validate("gamma", numerics="interpreter", build="cross", speed="none", timings=[])

    refused = workshop.ask("gamma", INT4, 96, dtype="fp16", allow=("interpreted",)).results[0]

    assert "required a trace for head size 96 on gamma" in refused.reason


def test_only_interpreted_can_be_allowed(workshop):
    with pytest.raises(UsageError, match="required interpreted, found 'declared'"):
        workshop.ask("alpha", INT4, 96, allow=("declared",))


def test_declared_evidence_is_refused_whatever_is_allowed(workshop):
    workshop.validate("alpha", numerics="none", build="cross", speed="none", timings=[])

    result = workshop.ask("alpha", INT4, 96, allow=("interpreted",)).results[0]

    assert "found declared" in result.reason


def test_compiled_evidence_is_selected_and_says_that_nobody_measured_its_accuracy(workshop):
    workshop.validate("gamma", numerics="interpreter", build="cross", speed="none", timings=[])

    result = workshop.ask("gamma", INT4, 96, dtype="fp16").result

    assert result.tier is Tier.COMPILED
    assert result.ops[Op.DECODE].accuracy == "unmeasured"


def test_compiled_evidence_names_the_card_that_measured_the_same_kernel(workshop):
    workshop.validate("gamma", numerics="interpreter", build="cross", speed="none", timings=[])
    workshop.validate("alpha")

    result = workshop.ask("gamma", INT4, 96, dtype="fp16").result

    assert result.ops[Op.DECODE].accuracy == "exact as on alpha"


CROSS = {"numerics": "interpreter", "build": "cross", "speed": "none", "timings": []}
"""Evidence as a compilation without the card leaves it."""


def test_one_compilation_serves_every_card_of_the_arch(workshop):
    workshop.validate("arch:toy_1", **CROSS)

    results = [workshop.ask(card, INT4, 96).result for card in ("alpha", "beta", "arch:toy_1")]

    assert [result.tier for result in results] == [Tier.COMPILED] * 3
    assert all("never_run" in note_codes(result) for result in results)
    assert results[0].ops[Op.DECODE].evidence.resources["registers"] == 64


def test_a_stale_compilation_is_lifted_by_the_command_of_any_missing_one(workshop):
    workshop.validate("arch:toy_1", **CROSS, kernel_hash="0" * 64)

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert codes(result) == {"stale"}
    assert "run `kvreg validate --device alpha --mode int4_per_token_head --head-size 96`" in result.reason


def test_a_build_that_the_compilers_figures_refuse_says_so_with_both_numbers(workshop):
    over = {"code": "shared_memory", "field": "attend, shared memory"}
    over |= {"required": "at most 65536 bytes on toy_1", "found": "131072 bytes"}
    workshop.validate("arch:toy_1", **{**CROSS, "numerics": "none"}, refusals=[over])

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert result.verdict == "refused"
    assert codes(result) == {"shared_memory"}
    assert "required at most 65536 bytes on toy_1, found 131072 bytes" in result.reason
    assert "`kvreg evidence show arch_toy_1-int4" in result.reason


def test_a_measurement_on_the_card_overrules_what_a_compiler_refused(workshop):
    spills = {"code": "spills", "field": "spills", "required": "at most 64 bytes", "found": "144 bytes"}
    workshop.validate("arch:toy_1", **{**CROSS, "numerics": "none"}, refusals=[spills])
    workshop.validate("alpha")

    assert workshop.ask("alpha", INT4, 96).result.tier is Tier.MEASURED


def test_a_compilation_counts_for_the_launch_parameters_that_were_compiled(workshop):
    """A group of 64 takes other blocks than the one of 4 that was compiled: nobody knows whether they fit."""
    by_group = [
        replace(variant, default_config=lambda device, request: {"tile": 32 if request.group <= 16 else 128})
        for variant in workshop.offered
    ]
    workshop.offered = tuple(by_group)
    workshop.validate("arch:toy_1", **CROSS)

    assert workshop.ask("alpha", INT4, 96).result.tier is Tier.COMPILED
    refused = workshop.ask("alpha", INT4, 96, q_heads=64, kv_heads=1).results[0]

    assert codes(refused) == {"config_evidence"}
    assert "required tile 32 as compiled, found tile 128 for a group of 64" in refused.reason


def test_a_modes_tier_is_its_weakest_ops(workshop):
    workshop.validate("alpha")
    write = next(v for v in workshop.offered if v.op is Op.WRITE and v.mode is Mode.INT4_PER_TOKEN_HEAD)
    workshop.trace(write, "alpha", numerics="interpreter", build="none", speed="none", timings=[])

    assert workshop.ask("alpha", INT4, 96, allow=("interpreted",)).result.tier is Tier.INTERPRETED


def test_among_accepted_the_stronger_tier_wins_over_the_faster(workshop):
    slow = workshop.variant("zz-decode", "decode", INT4)
    workshop.offered = (*workshop.offered, slow)
    workshop.validate("alpha", numerics="interpreter", build="cross", speed="none", timings=[])
    workshop.trace(slow, "alpha", timings=[{"batch": 32, "context": 8192, "group": 4, "us": 900.0}])

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].variant == "zz-decode@1"


def test_among_equal_tiers_the_faster_at_the_bucket_wins(workshop):
    fast = workshop.variant("zz-decode", "decode", INT4)
    workshop.offered = (*workshop.offered, fast)
    workshop.validate("alpha")
    workshop.trace(fast, "alpha", timings=[{"batch": 32, "context": 8192, "group": 4, "us": 80.0}])

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].variant == "zz-decode@1"


def test_a_timing_of_another_group_says_nothing(workshop):
    other = workshop.variant("zz-decode", "decode", INT4)
    workshop.offered = (*workshop.offered, other)
    workshop.validate("alpha")
    workshop.trace(other, "alpha", timings=[{"batch": 32, "context": 8192, "group": 1, "us": 1.0}])

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].variant == "toy-int4-decode@1"


@pytest.mark.parametrize(
    ("timed", "winner"),
    [
        ({128: 70.0, 64: 9000.0}, "zz-decode@1"),
        ({128: 9000.0, 64: 1.0}, "toy-int4-decode@1"),
        ({48: 35.0}, "zz-decode@1"),
        ({48: 90.0}, "toy-int4-decode@1"),  # 180 us at 96
    ],
    ids=str,
)
def test_a_variant_without_times_is_ranked_by_its_own_at_another_head_size(workshop, timed, winner):
    untimed = workshop.variant("zz-decode", "decode", INT4)
    workshop.validate("alpha")
    workshop.offered = (*workshop.offered, untimed)
    workshop.trace(untimed, "alpha", timings=[], speed="none")
    for head_size, us in timed.items():
        point = {"batch": 32, "context": 8192, "group": 4, "us": us}
        workshop.trace(untimed, "alpha", head_size, timings=[point])

    result = workshop.ask("alpha", INT4, 96).result

    assert result.ops[Op.DECODE].variant == winner
    assert result.ops[Op.DECODE].evidence.head_size == 96
    assert [note.text.split(":")[0] for note in result.notes if note.code == "speed_stand_in"] == ["zz-decode@1"]


def timed(us, tokens_us):
    """Return times of a write: at the bucket that is asked for, and of 8192 tokens."""
    shape = {"context": 0, "group": 4}
    return [{**shape, "batch": 32, "us": us}, {**shape, "batch": 8192, "us": tokens_us}]


@pytest.mark.parametrize(
    ("us", "tokens_us", "winner", "tie"),
    [
        (3.08, 120.0, "toy-int4-write@1", True),  # 1.6 % slower, and four times as fast elsewhere
        (3.08, 20.0, "zz-write@1", False),
        (3.00, 120.0, "zz-write@1", False),  # 4 % slower
        (3.13, 30.0, "toy-int4-write@1", False),  # by name, as ever
    ],
)
def test_where_two_times_are_as_good_as_equal_those_at_other_sizes_decide(workshop, us, tokens_us, winner, tie):
    other = workshop.variant("zz-write", "write", INT4)
    workshop.validate("alpha", timings=timed(3.13, 30.0))
    workshop.offered = (*workshop.offered, other)
    workshop.trace(other, "alpha", timings=timed(us, tokens_us))

    result = workshop.ask("alpha", INT4, 96).result

    assert result.ops[Op.WRITE].variant == winner
    assert ("speed_tie" in note_codes(result)) == tie


def test_where_two_times_are_as_good_as_equal_a_variants_own_goes_before_a_stand_in(workshop):
    untimed = workshop.variant("aa-decode", "decode", INT4)
    workshop.validate("alpha", timings=[{"batch": 32, "context": 8192, "group": 4, "us": 100.0}])
    workshop.offered = (*workshop.offered, untimed)
    workshop.trace(untimed, "alpha", timings=[], speed="none")
    workshop.trace(untimed, "alpha", 128, timings=[{"batch": 32, "context": 8192, "group": 4, "us": 99.0}])

    result = workshop.ask("alpha", INT4, 96).result

    assert result.ops[Op.DECODE].variant == "toy-int4-decode@1"
    assert {"speed_tie", "speed_stand_in"} <= note_codes(result)


def test_times_of_another_kernel_at_a_larger_head_size_rank_nothing(workshop):
    untimed = workshop.variant("zz-decode", "decode", INT4)
    workshop.validate("alpha")
    workshop.offered = (*workshop.offered, untimed)
    workshop.trace(untimed, "alpha", timings=[], speed="none")
    point = {"batch": 32, "context": 8192, "group": 4, "us": 1.0}
    workshop.trace(untimed, "alpha", 128, timings=[point], kernel_hash="0" * 64)

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].variant == "toy-int4-decode@1"


def test_the_fast_class_is_chosen_only_when_asked_for(workshop):
    fast = workshop.variant("aa-decode", "decode", INT4, accuracy="fast")
    workshop.offered = (*workshop.offered, fast)
    workshop.validate("alpha")

    exact = workshop.ask("alpha", INT4, 96).result
    loose = workshop.ask("alpha", INT4, 96, accuracy="fast").result

    assert exact.ops[Op.DECODE].variant == "toy-int4-decode@1"
    assert codes(exact) == {"accuracy"}
    assert loose.ops[Op.DECODE].variant == "aa-decode@1"


def test_winners_of_one_mode_store_one_format(workshop):
    plain = workshop.offered[-1].format

    def signed(device, head_size):
        return replace(plain(device, head_size), storage="int8")

    odd = workshop.variant("aa-decode", "decode", INT4, format=signed)
    workshop.offered = (*workshop.offered, odd)
    workshop.validate("alpha")
    workshop.trace(odd, "alpha", timings=[{"batch": 32, "context": 8192, "group": 4, "us": 1.0}])

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].variant == "toy-int4-decode@1"


def test_a_mode_whose_ops_disagree_about_the_format_is_refused(workshop):
    plain = workshop.offered[0].format

    def signed(device, head_size):
        return replace(plain(device, head_size), storage="int8")

    workshop.offered = tuple(
        replace(each, format=signed) if str(each.id) == "toy-int4-decode@1" else each for each in workshop.offered
    )
    workshop.validate("alpha")

    # A variant of the op that is rejected for another reason does not hide the disagreement.
    workshop.offered = (*workshop.offered, workshop.variant("aa-decode", "decode", INT4, accuracy="fast"))

    result = workshop.ask("alpha", INT4, 96).results[0]

    assert result.verdict == "refused"
    assert "required write, decode and prefill that store one format" in result.reason


def test_a_mode_without_a_variant_is_a_refusal_with_its_format(workshop):
    result = workshop.ask("alpha", "fp8_per_token_head", 96).results[0]

    assert result.verdict == "refused"
    assert codes(result) == {"no_variant"}
    assert [decision.variant for decision in result.decisions] == [None, None, None]
    assert (result.format.fp8, result.format.qmax) == ("e4m3fn", 448.0)
    assert (result.bytes_per_token_head, round(result.compression, 2)) == (200, 1.92)


def test_every_mode_is_answered_when_none_is_named(workshop):
    workshop.validate("alpha")

    answer = workshop.ask("alpha", None, 96)

    assert [result.mode for result in answer.results] == list(Mode)
    assert [result.verdict == "selected" for result in answer.results] == [True, False, False, False, True]


def test_a_backend_names_its_variants_as_often_for_every_mode_as_for_one(workshop, monkeypatch):
    workshop.validate("alpha")
    calls = []
    monkeypatch.setattr(workshop.backend, "variants", lambda: calls.append(1) or workshop.offered)

    workshop.ask("alpha", INT4, 96)
    for_one = len(calls)
    workshop.ask("alpha", "all", 96)

    assert len(calls) <= 2 * for_one


def test_a_family_that_the_environment_insists_on_refuses_the_others(workshop):
    workshop.validate("alpha")

    result = workshop.ask("alpha", INT4, 96, backend="other").results[0]

    assert codes(result) == {"family"}
    assert "KVREG_BACKEND: required other, found toy" in result.reason


def test_every_failed_constraint_is_listed(workshop):
    result = workshop.ask("gamma", INT4, 97, q_heads=30, page=20, features=["causal", "window"]).results[0]

    assert codes(result) == {"head_size", "q_heads", "dtype", "page", "feature"}


def test_what_a_request_left_out_is_listed_as_assumed(workshop):
    answer = workshop.ask("alpha", INT4, 96, q_heads=32, batch=4)

    assert set(answer.request.assumed) == {
        "kv_heads",
        "page",
        "dtype",
        "features",
        "context",
        "layout",
        "accuracy",
    }


def test_a_variant_whose_source_is_gone_is_refused_and_the_others_serve(workshop):
    lost = workshop.variant("aa-decode", "decode", INT4, kernels=(f"{workshop.package}.kernels:gone",))
    workshop.validate("alpha")
    workshop.offered = (*workshop.offered, lost)

    result = workshop.ask("alpha", INT4, 96).result

    assert result.ops[Op.DECODE].variant == "toy-int4-decode@1"
    assert codes(result) == {"evidence"}


def test_a_narrow_constraint_belongs_to_one_variant_only(workshop):
    narrow = workshop.variant("aa-decode", "decode", INT4, constraints=Constraints(head_min=128, head_step=64))
    workshop.validate("alpha")
    workshop.offered = (*workshop.offered, narrow)

    result = workshop.ask("alpha", INT4, 96).result

    assert codes(result) == {"head_size"}
    assert result.ops[Op.DECODE].variant == "toy-int4-decode@1"


def test_another_triton_than_the_traces_keeps_the_tier_with_a_note(workshop, tmp_path, monkeypatch):
    (tmp_path / "site" / "triton-3.9.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    workshop.validate("alpha", versions={"triton": "3.6.0"})

    result = workshop.ask("alpha", INT4, 96).result

    assert result.tier is Tier.MEASURED
    assert any("validated with triton 3.6.0, here is 3.9.0" in note.text for note in result.notes)


def test_the_same_triton_release_needs_no_note(workshop, tmp_path, monkeypatch):
    (tmp_path / "site" / "triton-3.6.1.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    workshop.validate("alpha", versions={"triton": "3.6.0"})

    assert note_codes(workshop.ask("alpha", INT4, 96).result) == set()


def test_the_overlays_newer_evidence_serves_beside_the_shipped(workshop):
    workshop.validate("alpha", max_rel_error=0.003)
    workshop.validate("alpha", max_rel_error=0.001, overlay=True, ended="2026-12-24T10:01:00Z")

    assert workshop.ask("alpha", INT4, 96).result.ops[Op.DECODE].evidence.max_rel_error == 0.001


def test_a_stronger_tier_goes_before_the_accuracy_class_that_was_asked_for(workshop):
    workshop.validate("alpha")
    fast = workshop.variant("aa-decode", "decode", INT4, accuracy="fast")
    workshop.trace(fast, "alpha", numerics="interpreter", build="cross", speed="none", timings=[])
    workshop.offered = (*workshop.offered, fast)

    assert workshop.ask("alpha", INT4, 96, accuracy="fast").result.ops[Op.DECODE].variant == "toy-int4-decode@1"


def test_a_trace_that_names_another_arch_than_its_devices_does_not_count(workshop):
    for variant in workshop.offered:
        workshop.trace(variant, "alpha", arch="toy_9")

    assert workshop.ask("alpha", INT4, 96).results[0].verdict == "refused"


def test_variants_of_another_platform_are_not_looked_at(workshop):
    class Other(type(workshop.backend)):
        name = platform = "other"

        def variants(self):
            return (workshop.variant("other-decode", "decode", INT4),)

    workshop.validate("alpha")
    index = Index([workshop.backend, Other(workshop.folder)], workshop.home, shipped=None)

    result = workshop.ask("alpha", INT4, 96, index=index).result

    assert "other-decode@1" not in {decision.variant for decision in result.decisions}
