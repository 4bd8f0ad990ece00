"""What `kvreg select --model` prints and ends with: a row for each group of layers, and the cache of all of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvreg.cli import model_answers
from kvreg.core import documents
from kvreg.core.environment import Environment
from kvreg.core.model_asking import answer_model
from kvreg.core.models import read_model
from kvreg.core.modes import Mode
from kvreg.core.variants import Constraints

GOLDEN = Path(__file__).parent / "golden"
INT4 = "int4_per_token_head"

FIELDS = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "head_dim": 96,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 6,
    "max_position_embeddings": 8192,
    "sliding_window": 1024,
    "torch_dtype": "bfloat16",
}
WINDOWED = ["causal", "window", "softcap"]


@pytest.fixture
def written(tmp_path):
    """Write a config.json with some fields changed."""

    def write(**changed):
        fields = {name: value for name, value in (FIELDS | changed).items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        return tmp_path

    return write


@pytest.fixture
def ask(workshop, written):
    """Answer for a model of these fields on the toy platform, all of whose variants take windows and softcaps."""
    declared = Constraints(features=("causal", "window", "softcap", "non_causal"))
    workshop.offered = tuple(replace(each, constraints=declared) for each in workshop.offered)

    def answer(device="alpha", mode=None, fields=None, **asked):
        model = replace(read_model(written(**(fields or {}))), folder=Path("folder"))
        found, environment = workshop.resolve(device), Environment(workshop.home)
        return answer_model(model, found, environment, mode, index=workshop.index(), **asked)

    return answer


@pytest.mark.parametrize(
    ("name", "features", "mode", "fields"),
    [
        ("selected", WINDOWED, None, {}),
        ("one-mode", WINDOWED, INT4, {"num_hidden_layers": 7}),
        ("refused", [], INT4, {}),
        ("mla", WINDOWED, None, {"kv_lora_rank": 512, "architectures": ["DeepseekV3ForCausalLM"]}),
        ("unknown", WINDOWED, "none", {"model_type": "novel", "architectures": ["NovelForCausalLM"]}),
    ],
)
def test_a_models_answer_reads_exactly_so(workshop, ask, capsys, name, features, mode, fields):
    if features:
        workshop.validate("alpha", features=features)

    model_answers.show(ask(mode=mode, fields=fields, weights_bytes=8 * 10**9))

    assert capsys.readouterr().out == (GOLDEN / f"model-{name}.txt").read_text()


def test_a_model_is_served_when_each_group_has_some_mode(workshop, ask):
    workshop.validate("alpha", features=WINDOWED)

    assert ask().served
    assert ask(mode=INT4).served
    assert not ask(mode="int8_per_token_head").served


def test_a_group_without_evidence_for_its_feature_is_refused_and_the_other_is_not(workshop, ask):
    workshop.validate("alpha", features=["causal", "softcap"])

    answer = ask(mode=INT4)
    sliding, full = answer.groups

    assert sliding.reason(Mode(INT4)).code == "feature_evidence"
    assert full.reason(Mode(INT4)) is None
    assert [(total.verdict, total.served) for total in answer.totals] == [("refused", 3)]


def test_the_cache_is_that_of_all_groups_with_their_windows(workshop, ask):
    answer = ask(mode=INT4, batch=2, context=4096)

    assert answer.totals[0].size.bytes == 2 * 8 * 104 * (3 * 4096 + 3 * (1024 + 16))
    assert answer.totals[0].size.bf16_bytes == 2 * 8 * 384 * (3 * 4096 + 3 * (1024 + 16))


def test_layers_that_share_a_cache_take_no_memory(workshop, ask):
    answer = ask(mode=INT4, fields={"num_kv_shared_layers": 2}, batch=2, context=4096)

    assert answer.totals[0].size.bytes == 2 * 8 * 104 * (2 * 4096 + 2 * (1024 + 16))
    assert [len(each.group.layers) for each in answer.groups] == [3, 3]


def test_a_group_that_no_kernel_can_serve_is_refused_before_any_is_looked_at(workshop, ask, capsys):
    text = {name: value for name, value in FIELDS.items() if name not in ("architectures", "model_type")}
    text |= {"model_type": "gemma4_text", "use_bidirectional_attention": "vision", "attn_logit_softcapping": None}
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 3, "global_head_dim": 96}
    images = {"model_type": "gemma4", "text_config": text | layers, "vision_config": {}}
    workshop.validate("alpha")

    answer = ask(mode=INT4, fields=images)
    model_answers.show(answer)

    assert [(each.reason(Mode(INT4)) is None, len(each.results)) for each in answer.groups] == [(False, 0), (True, 1)]
    assert "--text-only" in capsys.readouterr().out.splitlines()[0]


def test_no_context_beyond_the_models_own_is_said_to_fit(workshop, ask):
    assert ask("beta", INT4, batch=1).totals[0].size.context_fit is None  # its memory is unknown
    assert ask("alpha", INT4, batch=1).totals[0].size.context_fit == 8192


def test_a_named_feature_is_asked_for_beside_the_models(workshop, ask):
    assert ask(features=["sinks"]).groups[1].request.features == ("causal", "softcap", "sinks")
    assert ask(features=["non_causal"]).groups[1].request.features == ("non_causal", "softcap")


def test_a_dtype_that_is_given_goes_before_the_models(workshop, ask):
    assert ask(fields={"torch_dtype": "float16"}).groups[0].request.dtype == "fp16"
    assert ask(fields={"torch_dtype": "float16"}, dtype="bf16").groups[0].request.dtype == "bf16"


def test_a_context_longer_than_the_models_is_noted(workshop, ask, capsys):
    model_answers.show(ask(context=8192))
    model_answers.show(ask(context=9000))

    assert capsys.readouterr().out.count("is longer than the model's 8192") == 1


def test_explain_shows_each_groups_decisions(workshop, ask, capsys):
    workshop.validate("alpha", features=["causal", "softcap"])

    model_answers.show(ask(mode=INT4), explain=True)

    out = capsys.readouterr().out
    assert out.count("int4_per_token_head: decisions") == 2
    assert "layers 0-4 by 2 (3):\n" in out
    assert "toy-int4-decode@1" in out


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (range(32), "0-31 (32)"),
        (range(0, 42, 2), "0-40 by 2 (21)"),
        ((0, 1, 2, 3, 4, 6, 7), "0-4, 6-7 (7)"),
        ([n for n in range(26) if (n + 1) % 6], "0-4, 6-10, 12-16, ... (22)"),
        ((3,), "3 (1)"),
        ((3, 9), "3, 9 (2)"),
    ],
)
def test_layer_numbers_are_named_in_few_words(layers, text):
    assert model_answers.spans(tuple(layers)) == text


def test_the_document_of_a_model_has_a_request_and_results_for_each_group(workshop, ask):
    workshop.validate("alpha", features=WINDOWED)

    document = json.loads(json.dumps(documents.model(ask(mode=INT4))))

    assert list(document) == ["schema", "device", "model", "groups", "totals"]
    assert [group["layers"] for group in document["groups"]] == [[0, 2, 4], [1, 3, 5]]
    sliding = document["groups"][0]
    assert (sliding["window"], sliding["softcap"], sliding["cached_layers"]) == (1024, 50.0, 3)
    assert sliding["request"]["features"] == WINDOWED
    assert sliding["results"][0]["ops"]["decode"]["evidence"]["features"] == WINDOWED
    assert document["totals"][0]["cache"]["layers"] == 6
    assert document["model"]["refusal"] is None


def test_the_document_of_a_refused_model_names_why(workshop, ask):
    document = documents.model(ask(fields={"kv_lora_rank": 512}))

    assert document["model"]["refusal"]["code"] == "mla"
    assert (document["groups"], document["totals"]) == ([], [])


def test_a_refused_model_is_exit_3_with_the_reason_in_the_first_line(kvreg, written):
    answer = kvreg("select", "--device", "h200", "--model", str(written(kv_lora_rank=512)))

    assert (answer.code, answer.err) == (3, "")
    assert answer.out.startswith("refused: Gemma2ForCausalLM: attention: required keys and values stored for each KV")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--head-size", "96"), "--head-size is the model's own"),
        (("--kv-heads", "8"), "--kv-heads is the model's own"),
        (("--layers", "8"), "--layers is the model's own"),
        (("--mode", "int5"), "mode: required one of none"),
        (("--feature", "windows"), "feature: required one of causal"),
        (("--weights-gb", "-1"), "-1.0 is not in the range 0<=x"),
    ],
)
def test_a_wrong_word_beside_a_model_is_exit_2_and_one_line(kvreg, written, arguments, message):
    answer = kvreg("select", "--device", "h200", "--model", str(written()), *arguments)

    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err


def test_a_config_json_without_a_needed_field_is_exit_2_that_names_it(kvreg, written):
    answer = kvreg("select", "--device", "h200", "--model", str(written(model_type="odd", num_hidden_layers=...)))

    assert (answer.code, answer.out) == (2, "")
    assert "required a field num_hidden_layers, found none" in answer.err


def test_a_model_with_json_is_one_document(kvreg, written):
    answer = kvreg("select", "--device", "mi300x", "--model", str(written()), "--mode", INT4, "--json")

    assert (answer.code, answer.err) == (3, "")
    assert len(answer.document["groups"]) == 2


def test_a_head_size_that_is_the_models_own_is_not_to_be_changed(workshop, ask, capsys):
    model_answers.show(ask(fields={"head_dim": 100}))

    out = capsys.readouterr().out
    assert "found 100; it is the model's own, so take another mode or device" in out
    assert "the nearest are" not in out


def test_words_of_a_config_json_reach_the_terminal_escaped(here, written):
    folder = written(architectures=["Gemma2\x1b]0;owned\x07"], torch_dtype="\x1b[31mred")

    answer = here("select", "--device", "b200", "--model", str(folder))

    assert "Gemma2\\x1b]0;owned\\x07" in answer.out
    assert "stored as \\x1b[31mred" in answer.out
    assert answer.out.replace("\n", "").isprintable()
