"""A trace is written whole, read back equal, and shows every edit."""

import gzip
import json

import pytest
import yaml
from pydantic import ValidationError

from kvreg.core.errors import BadFile
from kvreg.core.evidence import Tier
from kvreg.core.traces import (
    Trace,
    digest,
    log_file,
    problems,
    read_trace,
    seal,
    to_evidence,
    trace_file,
    write_log,
    write_trace,
)


@pytest.fixture
def path(workshop):
    return workshop.trace(workshop.offered[-2])


@pytest.fixture
def trace(path):
    return read_trace(path)


def edited(path, change):
    record = yaml.safe_load(path.read_text())
    change(record)
    path.write_text(yaml.safe_dump(record))
    return problems(read_trace(path), path)


def test_a_trace_reads_back_as_it_was_written(path, trace):
    write_trace(trace, path)

    assert read_trace(path) == trace
    assert problems(trace, path) == []


def test_a_trace_lies_where_its_content_says(workshop, path, trace):
    expected = trace_file(workshop.backend.evidence_dir, "alpha", trace.mode, 96, trace.op, trace.variant)

    assert path == expected
    assert path.parts[-3:] == ("alpha", "int4_per_token_head", "d96-decode-toy-int4-decode.yaml")
    assert log_file(path).name == "d96-decode-toy-int4-decode.jsonl.gz"


def test_a_slices_folder_has_no_slash(workshop):
    place = trace_file(workshop.home, "h200/mig-1g.18gb", "none", 96, "write", "a@1")

    assert place.parts[-3] == "h200_mig-1g.18gb"


def test_an_id_names_device_mode_head_size_op_and_digest(trace):
    assert trace.id == f"alpha-int4_per_token_head-d96-decode-{digest(trace)[:8]}"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("field", [name for name in Trace.model_fields if name not in ("schema_", "id", "digest")])
def test_every_field_is_under_the_digest(trace, field):
    value = getattr(trace, field)

    assert digest(trace.model_copy(update={field: "changed"})) != digest(trace), value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(head_size=128), "digest"),
        (lambda record: record["gate"].update(max_rel_error=0.0001), "digest"),
        (lambda record: record["seeds"][0].update(max_rel_error=0.0001), "digest"),
        (lambda record: record.update(digest="0" * 64), "digest"),
        (lambda record: record.update(id="alpha-int4_per_token_head-d96-decode-00000000"), "id"),
        (lambda record: record["log"].update(sha256="0" * 64), "log"),
    ],
)
def test_an_edit_shows(path, change, message):
    assert any(message in problem for problem in edited(path, change))


def test_a_missing_log_shows(path):
    log_file(path).unlink()

    assert "is missing" in problems(read_trace(path), path)[0]


def test_a_trace_moved_to_another_device_shows(path, trace):
    place = path.parent.parent.parent / "beta" / path.parent.name / path.name
    place.parent.mkdir(parents=True)
    path.rename(place)
    log_file(path).rename(log_file(place))

    assert problems(read_trace(place), place) == [f"a trace of {'/'.join(path.parts[-3:])} lies elsewhere"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "a: [", "schema: 1", "schema: 2\nid: x", "\x00\x01", "a: 1\na: 2"],
)
def test_what_is_no_trace_is_a_bad_file_that_is_named(path, content):
    path.write_text(content)

    with pytest.raises(BadFile) as caught:
        read_trace(path)

    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
def test_an_error_is_a_finite_number_from_zero(trace, value):
    record = trace.model_dump(by_alias=True, exclude={"id", "digest"})
    record["gate"]["max_rel_error"] = value

    with pytest.raises(BadFile, match=r"gate\.max_rel_error"):
        seal(record)


def test_an_unknown_field_is_refused(trace):
    record = trace.model_dump(by_alias=True)

    with pytest.raises(ValidationError):
        Trace.model_validate({**record, "tier": "measured"})


@pytest.mark.parametrize("name", ["../log.jsonl.gz", "/etc/passwd", "a\\b.jsonl.gz", "log.txt"])
def test_a_log_lies_beside_its_trace(trace, name):
    record = trace.model_dump(by_alias=True, exclude={"id", "digest"})
    record["log"]["file"] = name

    with pytest.raises(BadFile, match=r"log\.file"):
        seal(record)


def test_an_unsealed_trace_is_not_written(trace, tmp_path):
    with pytest.raises(BadFile, match="required its own digest"):
        write_trace(trace.model_copy(update={"digest": "0" * 64}), tmp_path / "x.yaml")

    assert list(tmp_path.glob("x*")) == []


def test_equal_logs_have_equal_bytes(tmp_path):
    lines = [{"cell": n, "error": n / 7} for n in range(100)]

    first = write_log(lines, tmp_path / "a.yaml")
    second = write_log(lines, tmp_path / "b.yaml")

    assert (first.sha256, first.lines) == (second.sha256, 100)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    unpacked = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())
    assert [json.loads(line) for line in unpacked.splitlines()] == lines


def test_evidence_has_what_the_trace_measured(trace):
    evidence = to_evidence(trace)

    assert evidence.tier is Tier.MEASURED
    assert (evidence.trace, evidence.max_rel_error, evidence.cosine, evidence.seeds) == (trace.id, 0.002, 0.99999, 3)
    assert evidence.timings[0].bf16_us == 250.0
    assert evidence.versions == {"kvreg": "0.1.0", "python": "3.12.1", "driver": "1.2"}


def test_a_trace_from_before_features_were_recorded_keeps_its_digest_and_counts_as_causal(path, trace):
    assert "features" not in path.read_text()
    assert problems(trace, path) == []

    assert to_evidence(trace).features == ("causal",)


def test_the_features_that_a_trace_covers_reach_the_evidence(workshop):
    path = workshop.trace(workshop.offered[-2], features=["causal", "window", "sinks"])

    assert to_evidence(read_trace(path)).features == ("causal", "window", "sinks")


def test_adding_a_feature_to_a_trace_shows(path):
    assert any("digest" in problem for problem in edited(path, lambda record: record.update(features=["window"])))


@pytest.mark.parametrize("word", ["windows", "", "Window"])
def test_an_unknown_feature_is_refused(trace, word):
    record = trace.model_dump(by_alias=True, exclude={"id", "digest"})

    with pytest.raises(BadFile, match=r"features\.0"):
        seal({**record, "features": [word]})


@pytest.mark.parametrize(
    ("numerics", "build", "tier"),
    [
        ("device", "device", "measured"),
        ("arch", "device", "measured"),
        ("interpreter", "cross", "compiled"),
        ("interpreter", "none", "interpreted"),
        ("none", "cross", "declared"),
        ("device", "none", "declared"),
    ],
)
def test_a_tier_follows_from_the_axes(trace, numerics, build, tier):
    assert to_evidence(trace.model_copy(update={"numerics": numerics, "build": build})).tier == tier
