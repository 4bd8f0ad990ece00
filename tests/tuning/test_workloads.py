"""What a workload asks the tuner for."""

from __future__ import annotations

import json

import pytest

from kvreg.core.errors import BadFile, Refused, UsageError
from kvreg.core.requests import Op
from kvreg_tuning.workloads import PRESETS, find, read, shapes_of, single


def texts(workload):
    return {op.value: [str(each) for each in buckets] for op, buckets in workload.buckets.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_has_work_for_every_op(name):
    assert find(name).name == name
    assert all(find(name).buckets[op] for op in Op)


def test_one_step_is_the_bucket_that_a_lookup_of_it_asks_for():
    assert texts(single(30, 16000)) == {"write": ["t32"], "decode": ["b32-c16384"], "prefill": ["b32-c8192"]}


def test_a_bucket_is_a_workload():
    assert texts(find("b1-c131072")) == {"write": ["t1"], "decode": ["b1-c131072"], "prefill": ["b1-c8192"]}
    assert texts(find("t8000")) == {"write": ["t8192"]}


def test_a_file_names_buckets_and_any_work_counts_as_the_bucket_that_holds_it(tmp_path):
    path = tmp_path / "nightly.yaml"
    path.write_text("schema: 1\ndecode: [b32-c8192, b30-c8000, b1-c100]\nwrite: [t33]\n")

    workload = find(str(path))

    assert workload.name == "nightly"
    assert texts(workload) == {"write": ["t64"], "decode": ["b32-c8192", "b1-c256"]}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[]", "found list"),
        ("schema: 1\ndecode: [t32]", "decode bucket: required bBATCH-cCONTEXT, found t32"),
        ("schema: 1\nwrite: [b1-c1]", "write bucket: required tTOKENS, found b1-c1"),
        ("schema: 1\ndecode: [big]", "bucket 'big'"),
        ("schema: 1\ndecode: b1-c1", "required a list of buckets as decode"),
        ("schema: 1\ndecode: []", "required at least one bucket"),
        ("schema: 2\ndecode: [b1-c1]", "required schema 1, found 2"),
        ("schema: true\ndecode: [b1-c1]", "required schema 1, found True"),
        ("schema: 1\nencode: [b1-c1]", "found 'encode'"),
        ("schema: 1\ndecode: [b1-c1]\ndecode: [b2-c1]", "appears twice"),
        ('schema: 1\nname: "a\\e[2J"\ndecode: [b1-c1]', "required a name in printable characters"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, content, found):
    path = tmp_path / "work.yaml"
    path.write_text(content)

    with pytest.raises(BadFile) as error:
        read(path)

    assert str(path) in error.value.message
    assert found in error.value.message


@pytest.mark.parametrize(("word", "remedy"), [("chats", r"did you mean chat\?"), ("x" * 5000, "known: chat")])
def test_an_unknown_preset_gets_the_nearest_one(word, remedy):
    with pytest.raises(UsageError, match=f"found '{word}'; {remedy}"):
        find(word)


def write_model(folder, **changed):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
        **changed,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_is_tuned_for_its_shapes_and_no_longer_than_its_context(tmp_path):
    (shape,) = shapes_of(write_model(tmp_path), PRESETS["long-context"])

    assert (shape.head_size, shape.q_heads, shape.kv_heads, shape.dtype) == (128, 32, 8, "fp16")
    assert (shape.features, shape.layers) == (("causal",), (0, 1, 2, 3))
    assert texts(shape.workload)["decode"] == ["b1-c4096", "b4-c4096"]


def test_a_model_that_no_kernel_serves_is_refused_with_its_reason(tmp_path):
    with pytest.raises(Refused, match="multi-head latent attention"):
        shapes_of(write_model(tmp_path, model_type="deepseek_v3", kv_lora_rank=512), PRESETS["chat"])
