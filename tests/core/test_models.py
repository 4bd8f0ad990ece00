"""What a config.json says of a model's attention, for the fields of published ones (`models/`)."""

import json
from pathlib import Path

import pytest

from kvreg.core.errors import BadFile
from kvreg.core.models import read_model

MODELS = Path(__file__).parent / "models"


def model(name, **options):
    return read_model(MODELS / f"{name}.json", **options)


def groups(name, **options):
    """Return (layers, head size, query heads, KV heads, features beside causal, window) of each group."""
    return [
        (len(g.layers), g.head_size, g.q_heads, g.kv_heads, tuple(w for w in g.features if w != "causal"), g.window)
        for g in model(name, **options).groups
    ]


def codes(name, **options):
    return [note.code for note in model(name, **options).notes]


def written(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", [(32, 128, 32, 8, (), None)]),
        ("llama-3.2-1b", [(16, 64, 32, 8, (), None)]),
        ("qwen2.5-7b", [(28, 128, 28, 4, (), None)]),
        ("qwen3-4b", [(36, 128, 32, 8, (), None)]),
        ("phi-3-mini-4k", [(32, 96, 32, 32, ("window",), 2047)]),
        ("phi-3-mini-128k", [(32, 96, 32, 32, (), None)]),
        ("gemma-2-9b", [(21, 256, 16, 8, ("window", "softcap"), 4096), (21, 256, 16, 8, ("softcap",), None)]),
        ("gemma-3-1b", [(22, 256, 4, 1, ("window",), 512), (4, 256, 4, 1, (), None)]),
        (
            "gemma-3-4b",
            [(29, 256, 8, 4, ("window", "prefix_ranges"), 1024), (5, 256, 8, 4, ("prefix_ranges",), None)],
        ),
        ("gemma-4-e2b", [(28, 256, 8, 1, ("window",), 512), (7, 512, 8, 1, (), None)]),
        (
            "gemma-4-31b",
            [(50, 256, 32, 16, ("window", "prefix_ranges"), 1024), (10, 512, 32, 4, (), None)],
        ),
        ("mistral-7b-v0.1", [(32, 128, 32, 8, ("window",), 4096)]),
        ("mistral-7b-v0.3", [(32, 128, 32, 8, (), None)]),
        ("gpt-oss-20b", [(12, 64, 64, 8, ("window", "sinks"), 128), (12, 64, 64, 8, ("sinks",), None)]),
        ("falcon-7b", [(32, 64, 71, 1, (), None)]),
        ("falcon-40b", [(60, 64, 128, 8, (), None)]),
        ("falcon-rw-1b", [(24, 64, 32, 32, ("alibi",), None)]),
        ("bloom-560m", [(24, 64, 16, 16, ("alibi",), None)]),
        ("llama-4-scout", [(36, 128, 40, 8, ("chunked_lookback",), None), (12, 128, 40, 8, (), None)]),
    ],
)
def test_a_known_models_layers_are_grouped_by_what_they_ask_for(name, expected):
    assert groups(name) == expected
    assert model(name).known


def test_gemma_3_alternates_five_with_the_window_and_one_without():
    sliding, full = model("gemma-3-4b").groups

    assert full.layers == (5, 11, 17, 23, 29)
    assert set(sliding.layers) | set(full.layers) == set(range(34))


def test_gemma_2_begins_with_the_window_and_has_its_softcap():
    sliding, full = model("gemma-2-9b").groups

    assert (sliding.layers[0], full.layers[0]) == (0, 1)
    assert (sliding.softcap, full.softcap) == (50.0, 50.0)


def test_layers_that_share_a_cache_take_none_of_their_own():
    sliding, full = model("gemma-4-e2b").groups

    assert (sliding.cached, full.cached) == (12, 3)
    assert codes("gemma-4-e2b") == ["shared_cache"]


def test_a_window_that_holds_the_whole_context_is_none_and_says_so():
    assert codes("phi-3-mini-128k") == ["idle_window"]
    assert codes("phi-3-mini-4k") == []


def test_a_window_that_is_switched_off_is_none():
    assert groups("qwen2.5-7b") == [(28, 128, 28, 4, (), None)]
    assert codes("qwen2.5-7b") == []


def test_qwens_window_begins_at_its_layer(tmp_path):
    fields = json.loads((MODELS / "qwen2.5-7b.json").read_text())
    changed = {"use_sliding_window": True, "sliding_window": 1000, "max_window_layers": 20}

    full, sliding = read_model(written(tmp_path, **fields | changed)).groups

    assert (full.layers, sliding.layers, sliding.window) == (tuple(range(20)), tuple(range(20, 28)), 1000)


def test_images_that_the_window_cuts_are_refused_and_text_alone_is_served():
    sliding, full = model("gemma-4-31b").groups

    assert (sliding.refusal.code, full.refusal) == ("feature", None)
    assert "window of 1024" in sliding.refusal.required
    assert "--text-only" in sliding.refusal.remedy
    assert [group.refusal for group in model("gemma-4-31b", text_only=True).groups] == [None, None]
    assert groups("gemma-4-31b", text_only=True)[0][4] == ("window",)


def test_text_alone_needs_no_image_ranges():
    assert groups("gemma-3-4b", text_only=True) == [(29, 256, 8, 4, ("window",), 1024), (5, 256, 8, 4, (), None)]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("deepseek-v3", "mla", ("multi-head latent attention", "kv_lora_rank 512", "MLA backend")),
        ("bert-base", "encoder", ("BertForMaskedLM", "both ways")),
        ("t5-small", "encoder", ("T5ForConditionalGeneration", "encoder-decoder")),
        ("embeddinggemma-300m", "encoder", ("Gemma3TextModel", "both ways")),
    ],
)
def test_what_has_no_cache_of_rows_is_refused_as_a_whole(name, code, words):
    found = model(name)

    assert (found.refusal.code, found.groups) == (code, ())
    assert all(word in str(found.refusal) for word in words)


def test_a_bert_that_decodes_is_no_encoder(tmp_path):
    fields = json.loads((MODELS / "bert-base.json").read_text())
    decoder = {"is_decoder": True, "architectures": ["BertLMHeadModel"]}

    (group,) = read_model(written(tmp_path, **fields | decoder)).groups

    assert (len(group.layers), group.head_size) == (12, 64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", [(12, 64, 12, 12, (), None)]),
        ("openelm-270m", [(5, 64, 12, 3, (), None), (7, 64, 16, 4, (), None), (4, 64, 20, 5, (), None)]),
        ("qwen3-next-80b", [(12, 256, 16, 2, (), None)]),
    ],
)
def test_an_unknown_architecture_is_read_by_its_fields_with_a_note(name, expected):
    found = model(name)

    assert groups(name) == expected
    assert not found.known
    assert found.notes[0].code == "unknown_architecture"
    assert found.architecture in found.notes[0].text


def test_layers_without_attention_keep_no_cache_and_are_counted():
    found = model("qwen3-next-80b")

    assert found.groups[0].layers == tuple(range(3, 48, 4))
    assert "36 of 48 layers keep no keys and values (linear_attention)" in found.notes[1].text


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama-3.1-8b", "bf16"), ("bloom-560m", "fp16"), ("gemma-2-9b", None), ("gemma-4-e2b", "bf16")],
)
def test_the_models_dtype_is_read_under_either_name(name, dtype):
    assert model(name).dtype == dtype


def test_a_dtype_that_no_kernel_takes_is_named():
    assert codes("gemma-2-9b") == ["dtype"]


def test_a_folder_and_its_config_json_are_the_same(tmp_path):
    fields = json.loads((MODELS / "llama-3.1-8b.json").read_text())
    folder = written(tmp_path, **fields)

    assert read_model(folder).groups == read_model(folder / "config.json").groups


def test_a_layer_with_sizes_of_its_own_has_them(tmp_path):
    fields = json.loads((MODELS / "gemma-4-e2b.json").read_text())
    fields["text_config"]["per_layer_config"] = {"4": {"head_dim": 128, "num_key_value_heads": 2}}

    found = {
        group.layers: (group.head_size, group.kv_heads) for group in read_model(written(tmp_path, **fields)).groups
    }

    assert found[(4,)] == (128, 2)


def test_gemma_4s_global_kv_heads_count_only_where_keys_are_values_too(tmp_path):
    fields = json.loads((MODELS / "gemma-4-31b.json").read_text())
    fields["text_config"]["attention_k_eq_v"] = False

    assert [group.kv_heads for group in read_model(written(tmp_path, **fields)).groups] == [16, 16]


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_dtype_of_the_text_part_goes_first(tmp_path, name):
    fields = json.loads((MODELS / "gemma-3-4b.json").read_text())
    fields["text_config"][name] = "float16"

    assert read_model(written(tmp_path, **fields)).dtype == "fp16"


def test_a_text_part_that_names_no_type_is_its_parents(tmp_path):
    fields = json.loads((MODELS / "gemma-3-4b.json").read_text())
    del fields["text_config"]["model_type"]

    found = read_model(written(tmp_path, **fields))

    assert (found.model_type, found.known) == ("gemma3_text", True)
    assert found.groups == model("gemma-3-4b").groups


def test_values_of_another_width_than_keys_are_a_feature(tmp_path):
    fields = {"model_type": "mimo", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 1024}

    (group,) = read_model(written(tmp_path, **fields, head_dim=192, v_head_dim=128)).groups

    assert "diff_v" in group.features


def test_gemma_4_ends_with_a_layer_that_sees_everything_where_no_list_says(tmp_path):
    fields = json.loads((MODELS / "gemma-4-31b.json").read_text())
    del fields["text_config"]["layer_types"]
    fields["text_config"]["num_hidden_layers"] = 8

    _, full = read_model(written(tmp_path, **fields), text_only=True).groups

    assert full.layers == (5, 7)


LLAMA = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 1024}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "odd"}, "required a field num_hidden_layers, found none"),
        ({"model_type": "odd", "num_hidden_layers": 4}, "required a field num_attention_heads, found none"),
        ({"model_type": "odd", "num_hidden_layers": 4, "num_attention_heads": 8}, "required a field hidden_size"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers: required a whole number from 1, found 0"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers: required a whole number from 1, found True"),
        ({**LLAMA, "num_attention_heads": "8"}, "num_attention_heads: required a whole number from 1, found '8'"),
        ({**LLAMA, "head_dim": 64.0}, "head_dim: required a whole number from 1, found 64.0"),
        ({**LLAMA, "hidden_size": 1000, "num_attention_heads": 7}, "required a multiple of the 7 heads"),
        ({**LLAMA, "layer_types": ["full_attention"] * 3}, "layer_types: required 4 words, one a layer, found 3"),
        ({**LLAMA, "layer_types": "full_attention"}, "layer_types: required a list of words"),
        ({**LLAMA, "layer_types": ["spiral_attention"] * 4}, "found 'spiral_attention'"),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 4}, "sliding_window: required a width"),
        ({**LLAMA, "num_key_value_heads": [8, 8]}, "num_key_value_heads: required 4 whole numbers from 1"),
        ({**LLAMA, "sliding_window": -5}, "sliding_window: required a whole number from 1, found -5"),
        ({**LLAMA, "attn_logit_softcapping": -1.0}, "attn_logit_softcapping: required a number above 0"),
        ({**LLAMA, "model_type": 7}, "model_type: required a text, found 7"),
        ({**LLAMA, "is_encoder_decoder": "no"}, "is_encoder_decoder: required true or false, found 'no'"),
    ],
)
def test_a_field_of_another_kind_is_a_bad_file_that_names_it(tmp_path, fields, message):
    with pytest.raises(BadFile) as caught:
        read_model(written(tmp_path, **fields))

    assert message in caught.value.message
    assert "config.json" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"[" * 100_000])
def test_what_is_no_json_object_is_a_bad_file(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(BadFile, match="required a JSON object"):
        read_model(tmp_path)


def test_a_folder_without_a_config_json_is_a_bad_file_that_names_it(tmp_path):
    with pytest.raises(BadFile, match=r"required a config\.json, found No such file"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**LLAMA, "num_hidden_layers": 5_000_000}, "num_hidden_layers: required at most 10000, found 5000000"),
        ({**LLAMA, "num_attention_heads": 2**31}, "num_attention_heads: required at most 2147483647"),
        ({**LLAMA, "attn_logit_softcapping": 10**400}, "attn_logit_softcapping: required a number above 0"),
        ({**LLAMA, "attn_logit_softcapping": float("inf")}, "attn_logit_softcapping: required a number above 0"),
        ({**LLAMA, "text_config": "llama"}, "text_config: required an object, found 'llama'"),
        ({**LLAMA, "architectures": "LlamaForCausalLM"}, "architectures: required a list of words"),
        ({**LLAMA, "architectures": [None]}, "architectures: required a list of words"),
        ({**LLAMA, "head_dim": "x" * 10_000}, "found 'xxx"),
    ],
)
def test_a_field_beyond_all_bounds_or_of_another_kind_is_a_bad_file(tmp_path, fields, message):
    with pytest.raises(BadFile) as caught:
        read_model(written(tmp_path, **fields))

    assert message in caught.value.message
    assert len(caught.value.message) < 400 + len(str(tmp_path))


def test_the_most_layers_are_read(tmp_path):
    assert read_model(written(tmp_path, **{**LLAMA, "num_hidden_layers": 10_000})).layers == 10_000


@pytest.mark.parametrize("path", ["a" * 300, "a" * 10_000, "null\0byte"])
def test_a_path_that_no_file_can_have_is_a_bad_file(path):
    with pytest.raises(BadFile, match=r"required a config\.json"):
        read_model(Path(path))


def test_a_file_without_an_end_is_not_read_to_its_end(tmp_path):
    with pytest.raises(BadFile, match="found a device"):
        read_model(Path("/dev/zero"))

    long = tmp_path / "config.json"
    with open(long, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadFile, match="found more than 16 MB"):
        read_model(long)


@pytest.mark.parametrize("dtype", [16, {"text": "bfloat16"}, "float8_e4m3fn"])
def test_weights_of_another_type_are_noted(tmp_path, dtype):
    found = read_model(written(tmp_path, **LLAMA, torch_dtype=dtype))

    assert found.dtype is None
    assert "bf16 is assumed" in found.notes[-1].text
