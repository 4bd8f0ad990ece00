"""kvreg's own list of exceptions is clean, its schema and the ids of the tests are current."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import date

import pytest

from kvreg.core.expectations import schema
from kvreg.core.expectations.collected import read_ids
from kvreg.core.expectations.files import survey, survey_text
from kvreg.core.expectations.known import Known
from kvreg.core.expectations.lint import check
from kvreg.core.expectations.node_ids import file_of

pytestmark = pytest.mark.checkout


def test_the_list_is_clean_as_of_the_commit(root):
    """As of the commit's day: a commit that passed passes for ever; the scheduled check asks for today."""
    git = ["git", "-C", str(root), "log", "-1", "--format=%cs"]
    day = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    as_of = date.fromisoformat(day) if day else date.today()

    findings = check(
        survey(root / "ci" / "expectations.yaml"), Known.installed(), as_of, read_ids(root / "ci" / "test-ids.txt")
    )

    assert findings == ()


def test_the_schema_is_generated_from_the_model_and_current(root):
    path = root / "ci" / "expectations.schema.json"

    assert path.read_text() == schema.text(), "run: python ci/generate.py expectations-schema"
    assert set(json.loads(schema.text())["$defs"]["Entry"]["required"]) == {
        *("test", "when", "expect", "reason", "issue", "owner", "added", "review_by"),
    }


def test_the_ids_of_the_tests_are_current(root, collected, pytestconfig):
    """Of the files that this run has collected; a run without paths collects all of them."""
    if any("::" in argument for argument in pytestconfig.args):
        pytest.skip("this run has collected parts of files")
    recorded = (root / "ci" / "test-ids.txt").read_text().splitlines()
    whole = pytestconfig.args == pytestconfig.getini("testpaths")
    files = {file_of(node_id) for node_id in collected}
    wanted = {node_id for node_id in recorded if whole or file_of(node_id) in files}

    missing, gone = sorted(set(collected) - wanted), sorted(wanted - set(collected))

    assert (missing[:5], gone[:5]) == ([], []), "run: python ci/generate.py test-ids"
    assert recorded == sorted(set(recorded))


def test_the_list_that_the_docs_show_is_one(root, tmp_path):
    page = (root / "docs" / "deselections.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)

    found = survey_text(example, tmp_path / "list.yaml")

    assert (len(found.entries), found.faults) == (1, ())
    assert all(f"`{field}`" in page for field in schema.Entry.model_fields)


@pytest.mark.parametrize(
    "row",
    [
        "test_per_token_kv_cache.py::test_triton_unified_attention_per_token_head_scale[int4-16-128-num_heads0-seq_lens1]",
        "test_fp8_per_channel.py::test_fp8_per_channel_logprobs[moe]",
        "test_online.py::test_online_quantization_loads_real_weights[*]",
        "test_online.py::test_online_quantization[False-requantization_mxfp8_ptcp_fp8]",
        "test_moe_lora_align_sum.py::test_moe_lora_align_block_size_mixed_base_and_lora[1]",
        "test_quant_model.py::test_quant_model_lora[model0]",
        "test_quant_model.py::test_quant_model_lora[model1]",
        "test_quant_model.py::test_quant_model_tp_equality[model0]",
        "test_cumem.py::test_basic_cumem[*]",
        "test_chat_completions.py::test_chat_completion_with_tools[granite-3.0-8b]",
        "test_chat_completions.py::test_chat_completion_with_tools[llama3.2]",
        "test_pause_resume.py::TestPauseResume::test_clear_cache_preserves_output_and_controls_prefix_cache[MRV1]",
        "test_tensor_schema.py::test_model_tensor_schema[deepseek-ai/DeepSeek-V4.1-Flash]",
        "test_mtp.py::test_glm_mtp_defers_lm_head[*]",
        "test_bf16_skinny_gemm.py::test_every_dsv3_routed_shape_is_instantiated[*]",
    ],
    ids=lambda row: row.partition("::")[2].partition("[")[0],
)
def test_the_page_of_vllms_pipelines_holds_what_a_search_finds(root, row):
    """Each stands in the pipelines of the 0.33.0 source distribution, as a search for `deselect` shows."""
    entries = (root / "docs" / "vllm-deselections.md").read_text().partition("## Left out")[0]

    assert f"{row}` |" in entries
