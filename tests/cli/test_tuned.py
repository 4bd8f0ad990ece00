"""`kvreg tuned` and what `kvreg select` says of tuned files, as processes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from kvreg.core.kernelhash import kernel_hash
from kvreg.core.registry import backends

INT4 = "int4_per_token_head"
DECODE = "cuda-int4-decode@1"
SHAPE = ("--mode", INT4, "--head-size", "96")
CONFIG = {
    "chunk": 512, "maxnreg": 168, "num_stages": 3, "num_warps": 1, "programs_per_unit": 8, "rows": 8, "tile": 32,
}  # fmt: skip
TUNE = f"--mode {INT4} --op decode --head-size 96 --group 4 --workload b32-c8192"
LOOKED_FOR = "head size 96, group 4, page 16, bf16, planar.2, causal"
ESCAPE = "\x1b[2J"


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A KVREG_HOME whose index outlives each test: hashing every kernel takes a second."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def home(warm):
    for name in ("tuned", "evidence"):
        shutil.rmtree(warm / name, ignore_errors=True)
    return warm


UNSHIPPED = """
from pathlib import Path
from kvreg.core.registry import backends
for each in backends():
    each.tuned_dir = Path(each.tuned_dir, "none")
from kvreg.core.index import Index
built = Index.shipped_digests.fget
def without_tuned(index):
    every = built(index)
    return {name: {k: v for k, v in found.items() if not k.startswith("tuned/")} for name, found in every.items()}
Index.shipped_digests = property(without_tuned)
"""
"""What a package ships is no part of these tests: each states all the entries there are."""


@pytest.fixture
def kvreg(kvreg):
    def run(*arguments, before="", **more):
        return kvreg(*arguments, before=f"{before}\n{UNSHIPPED}", **more)

    return run


@pytest.fixture(scope="module")
def cuda():
    return next(backend for backend in backends() if backend.name == "cuda")


@pytest.fixture(scope="module")
def hashes(cuda):
    names = ("triton-int4-write@1", DECODE, "triton-int4-prefill@1")
    return {str(each.id): kernel_hash(each) for each in cuda.variants() if str(each.id) in names}


@pytest.fixture
def tune(home, hashes):
    """Write a tuned file of the overlay; each entry states what differs from a plain decode."""

    def write(device, *entries, name=None, environment=()):
        plain = {
            "variant": DECODE,
            "op": "decode",
            "mode": INT4,
            "head_size": 96,
            "group": 4,
            "page": 16,
            "dtype": "bf16",
            "layout": "planar.2",
            "features": ["causal"],
            "bucket": "b32-c8192",
            "config": {**CONFIG, "tile": 64},
            "latency_us": 80.0,
            "default_latency_us": 100.0,
            "improvement": 0.2,
            "kernel_hash": hashes[DECODE],
            "source": "measured",
            "date": "2026-11-30T10:00:00Z",
        }
        frame = {"schema": 1, "device": device, "environment": dict(environment)}
        path = home / "tuned" / (name or f"{device}.yaml")
        path.parent.mkdir(exist_ok=True)
        document = {**frame, "entries": [{**plain, **entry} for entry in entries]}
        path.write_text(yaml.safe_dump(document, sort_keys=False, default_flow_style=None))
        return path

    return write


# --- list ---


def test_where_nothing_was_tuned_the_list_says_so_with_the_command(kvreg, home):
    answer = kvreg("tuned", "list", "--device", "NVIDIA H200", *SHAPE, "--op", "decode")

    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "nothing has been tuned here",
        "",
        f"kvreg tune --device h200 --mode {INT4} --op decode --head-size 96",
    ]


def test_the_list_shows_times_and_whether_select_uses_an_entry(kvreg, tune):
    tune("h200", {}, {"bucket": "b64-c8192", "kernel_hash": "0" * 64})

    rows = kvreg("tuned", "list").out.splitlines()

    assert rows[1].startswith(f"h200    {DECODE}  head 96 group 4 page 16 bf16  b32-c8192")
    assert "80 (default 100)" in rows[1]
    assert [row.rpartition("  ")[2] for row in rows[1:3]] == ["measured, overlay, current", "measured, overlay, stale"]


def test_an_empty_list_names_the_nearest_entries_and_what_differs(kvreg, tune):
    tune("h200", {"head_size": 128}, {"head_size": 64})
    tune("h100", {})

    answer = kvreg("tuned", "list", "--device", "h200", "--head-size", "96", "--json")

    assert answer.document["entries"] == []
    assert [each["differing"] for each in answer.document["nearest"]] == [
        ["device h100"],
        ["head_size 128"],
        ["head_size 64"],
    ]
    assert answer.document["command"] == "kvreg tune --device h200 --head-size 96"


def test_an_empty_list_names_the_nearest_head_sizes_first(kvreg, tune):
    tune("h200", {"head_size": 64}, {"head_size": 80}, {"head_size": 128}, {"head_size": 256})

    answer = kvreg("tuned", "list", "--head-size", "120", "--json")

    assert [each["differing"] for each in answer.document["nearest"]] == [
        ["head_size 128"],
        ["head_size 80"],
        ["head_size 64"],
    ]


def test_of_a_head_size_that_nothing_serves_no_tuning_is_offered(kvreg, tune):
    tune("h200", {})

    answer = kvreg("tuned", "list", "--device", "h200", "--op", "decode", "--head-size", "20", "--json")

    assert answer.document["command"] == "kvreg select --device h200 --head-size 20"
    again = kvreg(*answer.document["command"].split()[1:])
    assert again.code == 3
    assert "the nearest are --head-size 32 and 40" in again.out + again.err


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"page": 32, "dtype": "fp16", "group": 1, "features": ["causal", "window"], "bucket": "b1-c4096"},
        {"layout": "inline.1"},
        {
            "variant": "triton-int4-write@1",
            "op": "write",
            "group": 1,
            "bucket": "t64",
            "config": {"rows": 4, "num_warps": 1, "num_stages": 1},
        },
    ],
    ids=["usual", "unusual", "another layout", "a write"],
)
def test_the_list_ends_with_the_command_that_shows_an_entry(kvreg, tune, hashes, changed):
    tune("h200", {**changed, "kernel_hash": hashes[changed.get("variant", DECODE)]})

    words = kvreg("tuned", "list").out.splitlines()[-1].split()
    shown = kvreg(*words[1:])

    assert words[:3] == ["kvreg", "tuned", "show"]
    assert (shown.code, shown.err) == (0, "")
    assert "80 (default 100)" in shown.out


# --- show ---


def test_show_gives_the_entry_that_serves_and_why_others_do_not(kvreg, tune):
    path = tune(
        "h200",
        {"resources": {"shared_bytes": 999999}},
        {"bucket": "b64-c8192", "gate": {"cells": 7}},
        environment={"triton": "3.6.0"},
    )

    answer = kvreg("tuned", "show", "--device", "h200", *SHAPE, "--variant", DECODE, "--op", "decode")

    assert answer.code == 0
    rows = dict(line.split("  ", 1) for line in answer.out.splitlines() if "  " in line)
    assert rows["config source"].strip() == "bucket: b64-c8192 stands in"
    assert rows["us"].strip() == "80 (default 100), 20.0% under the default"
    assert rows["gate"].strip() == '{"cells": 7}'
    assert rows["made with"].strip() == "triton 3.6.0"
    assert rows["file"].strip() == str(path)
    assert "passed over: b32-c8192 (measured)" in answer.out
    assert "needs 999999 B of shared memory, h200 has 232448 B" in answer.out


def test_a_miss_says_what_was_looked_for_what_is_near_and_what_would_tune_it(kvreg, tune):
    path = tune("h200", {"head_size": 128}, {"page": 32, "dtype": "fp16"})

    answer = kvreg("tuned", "show", "--device", "h200", *SHAPE, "--variant", DECODE, "--op", "decode", "--json")

    assert answer.code == 4
    (decode,) = answer.document["ops"]
    assert (decode["config_source"], decode["serves"]) == ("default", None)
    assert decode["miss"] == {
        "looked_for": f"{DECODE} on h200: {LOOKED_FOR}, b32-c8192",
        "nearest": [
            {"file": str(path), "differing": [{"field": "head_size", "wanted": "96", "found": "128"}]},
            {
                "file": str(path),
                "differing": [
                    {"field": "page", "wanted": "16", "found": "32"},
                    {"field": "dtype", "wanted": "bf16", "found": "fp16"},
                ],
            },
        ],
        "command": f"kvreg tune --device h200 {TUNE}",
    }


@pytest.mark.parametrize("size", ["20", "1000000000"])
def test_a_head_size_that_no_variant_takes_is_refused_in_the_words_of_select(kvreg, tune, size):
    tune("h200", {})
    words = ("--device", "h200", "--mode", INT4, "--head-size", size)

    shown, selected = kvreg("tuned", "show", *words), kvreg("select", *words)

    assert (shown.code, shown.out, selected.code) == (3, "", 3)
    refused = selected.out.splitlines()[0]
    assert refused.startswith(f"refused: {INT4} on h200: head_size: required a multiple of 8 from 32 to 512")
    assert shown.err.startswith(f"kvreg: {refused.removeprefix('refused: ')}")
    assert shown.err.count("\n") == 1


# --- check ---


def test_check_finds_everything_that_select_would_not_use_with_a_remedy_each(kvreg, tune, home):
    tune("h200", {}, {"bucket": "b64-c8192", "kernel_hash": "0" * 64})
    tune("h100", {"resources": {"shared_bytes": 999999}}, {"bucket": "b64-c8192", "config": {"tile": 1}})
    tune("mi300x", {})
    tune("h200", {}, name="NVIDIA_H200.yaml")
    tune("voodoo2", {})
    (home / "tuned" / "b200.yaml").write_text("entries: [")

    answer = kvreg("tuned", "check", "--json")

    assert answer.code == 4
    found = {each["kind"]: each for each in answer.document["findings"]}
    assert sorted(found) == ["broken", "device", "memory", "misplaced", "parameters", "stale", "variant"]
    assert "mi300x" in found["variant"]["file"]  # the decode of these entries is one that NVIDIA cards alone have
    assert "00000000, now" in found["stale"]["problem"]
    assert "needs 999999 B of shared memory, h100 has 232448 B" in found["memory"]["problem"]
    assert "lacks chunk, maxnreg, num_stages" in found["parameters"]["problem"]
    assert found["misplaced"]["remedy"].startswith("`kvreg tuned merge ")
    assert "sets the file aside" in found["broken"]["remedy"]
    for kind in ("stale", "memory", "parameters"):
        assert f"`kvreg tune --device h{'200' if kind == 'stale' else '100'} --mode {INT4}" in found[kind]["remedy"]


CANNOT_BE_LAUNCHED = (
    {"foo": 3}, {"matrix_instr_nonkdim": 16}, {"num_ctas": 16}, {"tile": 1}, {"tile": 8}, {"rows": 1024},
    {"chunk": 10**30}, {"chunk": 1},
)  # fmt: skip


def test_check_finds_what_cannot_be_launched_and_select_takes_none_of_it(kvreg, tune):
    sizes = [1 << power for power in range(5, 5 + len(CANNOT_BE_LAUNCHED))]
    entries = [
        {"bucket": f"b{size}-c8192", "config": {**CONFIG, **changed}}
        for size, changed in zip(sizes, CANNOT_BE_LAUNCHED, strict=True)
    ]
    path = tune("h200", *entries)

    checked, selected = kvreg("tuned", "check", "--json"), kvreg("select", "--device", "h200", *SHAPE, "--explain")

    problems = [(each["kind"], each["problem"]) for each in checked.document["findings"]]
    assert (checked.code, {kind for kind, _ in problems}) == (4, {"parameters"})
    for (name, value), problem in zip(
        (next(iter(each.items())) for each in CANNOT_BE_LAUNCHED), problems, strict=True
    ):
        assert f"has {name}" in problem[1]
        assert str(value) in problem[1] or "unknown name" in problem[1]
    assert selected.code == 0
    assert "(tuned)" not in selected.out
    assert selected.err.count(str(path)) == 1


def test_an_entry_of_the_host_that_no_split_of_torch_takes_is_not_used(kvreg, tune):
    (variant,) = [
        each
        for backend in backends()
        for each in backend.variants()
        if (backend.name, str(each.id)) == ("cpu", "torch-int4-write@1")
    ]
    write = {"variant": str(variant.id), "op": "write", "kernel_hash": kernel_hash(variant), "dtype": "bf16"}
    tune("cpu", *[{**write, "bucket": f"t{32 << at}", "config": {"rows": 2**n}} for at, n in enumerate((31, 62, 100))])

    checked, selected = kvreg("tuned", "check", "--json"), kvreg("select", "--device", "cpu", *SHAPE, "--explain")

    assert (checked.code, [each["kind"] for each in checked.document["findings"]]) == (4, ["parameters"] * 3)
    assert "(tuned)" not in selected.out
    assert selected.err.count("has rows 2147483648 instead of at most 2147483647: not used") == 1


def test_an_entry_of_other_versions_is_a_finding_only_when_strict(kvreg, tune, tmp_path):
    (tmp_path / "site" / "torch-9.9.9.dist-info").mkdir(parents=True)
    before = f"sys.path.insert(0, {str(tmp_path / 'site')!r})"
    cpu = next(backend for backend in backends() if backend.name == "cpu")
    (variant,) = [each for each in cpu.variants() if str(each.id) == "torch-int4-decode@1"]
    entry = {"variant": str(variant.id), "kernel_hash": kernel_hash(variant), "config": {"scores": 4096}}
    tune("cpu", entry, environment={"torch": "9.9.8"})

    lenient, strict = (kvreg("tuned", "check", *more, before=before) for more in ((), ("--strict",)))

    assert (lenient.code, strict.code) == (0, 4)
    assert lenient.out == strict.out
    assert "was tuned with torch 9.9.8, here is 9.9.9; `kvreg tune --device cpu" in lenient.out


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"op": "prefill"}, f"says prefill of {INT4}, and {DECODE} is decode of {INT4}"),
        ({"mode": "int8_per_token_head", "layout": "planar.1"}, f"and {DECODE} is decode of {INT4}"),
        ({"head_size": 7}, "(head_size 7, not a multiple of 8 from 32 to 512)"),
        ({"page": 7}, "(page 7, not a multiple of 16"),
        ({"dtype": "fp32"}, "(dtype fp32, not bf16 or fp16)"),
    ],
)
def test_check_finds_what_no_request_reaches(kvreg, tune, changed, why):
    tune("h200", changed)

    answer = kvreg("tuned", "check")

    assert answer.code == 4
    assert why in answer.out
    assert "never used" in answer.out
    assert "no variant" in kvreg("tuned", "list").out


def test_check_of_sound_files_ends_with_0(kvreg, tune):
    tune("h200", {})

    answer = kvreg("tuned", "check", "--strict")

    assert (answer.code, answer.out) == (0, "1 entry in 1 file: nothing found\n")


# --- diff and merge ---


def test_diff_shows_what_changed_and_what_one_file_lacks(kvreg, tune):
    first = tune("h200", {}, {"bucket": "b1-c256"})
    second = tune("h200", {"latency_us": 75.0, "config": {**CONFIG, "tile": 16}}, name="new.yaml")

    answer = kvreg("tuned", "diff", str(first), str(second))

    assert answer.code == 4
    row = next(line for line in answer.out.splitlines() if "config, latency_us" in line)
    assert "tile=64" in row
    assert "tile=16" in row
    assert f"only in {first}: {DECODE}, head size 96, group 4, page 16, bf16, b1-c256" in answer.out
    assert kvreg("tuned", "diff", str(first), str(first)).code == 0


def test_merge_takes_the_better_of_each_and_a_dry_run_only_says_so(kvreg, tune, home):
    into = tune("h200", {}, {"bucket": "b1-c256"})
    faster = tune("h200", {"latency_us": 75.0, "config": {**CONFIG, "tile": 32}}, name="a.yaml")
    slower = tune("NVIDIA H200", {"bucket": "b1-c256", "latency_us": 99.0}, {"bucket": "b2-c256"}, name="b.yaml")
    before = into.read_text()
    words = ("tuned", "merge", str(faster), str(slower), "--into", str(into), "--json")

    dry = kvreg(*words, "--dry-run")
    assert into.read_text() == before
    wet = kvreg(*words)

    assert (dry.code, wet.code) == (0, 0)
    assert dry.document == {**wet.document, "written": False}
    fates = {each["entry"]["bucket"]: (each["fate"], each["why"]) for each in wet.document["changes"]}
    assert fates == {
        "b32-c8192": ("replaced", "the faster one"),
        "b1-c256": ("kept", "the faster one"),
        "b2-c256": ("added", ""),
    }
    assert [each["latency_us"] for each in yaml.safe_load(into.read_text())["entries"]] == [80.0, 80.0, 75.0]


def test_merge_keeps_what_can_be_launched_whatever_the_times(kvreg, tune):
    into = tune("h200", {})
    other = tune("h200", {"latency_us": 75.0, "config": {**CONFIG, "tile": 16}}, name="a.yaml")

    answer = kvreg("tuned", "merge", str(other), "--into", str(into), "--json")

    (change,) = answer.document["changes"]
    assert (change["fate"], change["why"]) == ("kept", "the one that can be launched")
    assert yaml.safe_load(into.read_text())["entries"][0]["config"]["tile"] == 64


@pytest.mark.parametrize("name", ["h100.yaml", "mi300x.yaml"], ids=["holds another's", "is named as another's"])
def test_merge_takes_nothing_into_another_device_s_file(kvreg, tune, name):
    source = tune("h200", {})
    other = tune("h100", {}) if name == "h100.yaml" else source.with_name(name)
    before = other.read_text() if other.exists() else None

    answer = kvreg("tuned", "merge", str(source), "--into", str(other))

    assert answer.code == 2
    assert f"--into {other}: required a file of h200, found that of {name.removesuffix('.yaml')}" in answer.err
    assert (other.read_text() if other.exists() else None) == before
    assert sorted(path.name for path in source.parent.glob("*.broken-*")) == []


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_diff_refuses_two_devices(kvreg, tune, more):
    one, other = tune("h200", {}), tune("h100", {})

    answer = kvreg("tuned", "diff", str(one), str(other), *more)

    assert answer.code == 2
    said = answer.document["error"]["message"] if more else answer.err
    assert f"{other}: required entries of h200, found h100; compare each device by itself" in said


def test_diff_takes_two_names_of_one_device(kvreg, tune, tmp_path):
    path = tune("h200", {})
    other = tmp_path / "h200.yaml"
    other.write_text(path.read_text().replace("device: h200", "device: NVIDIA H200"))

    assert kvreg("tuned", "diff", str(path), str(other)).code == 0


def test_merge_refuses_two_devices(kvreg, tune):
    one, other = tune("h200", {}), tune("h100", {})

    answer = kvreg("tuned", "merge", str(one), str(other), "--into", str(one))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"kvreg: {other}: required entries of h200, found h100; merge each device by itself\n"


NO_TUNED_FILE = {
    "notes.txt": "milk, eggs\n",
    "list.yaml": "- schema\n- entries\n",
    "workload.yaml": "schema: 1\nname: nightly\nwrite: [t32]\n",
    "program.py": "schema = {\n",
}


@pytest.mark.parametrize("name", NO_TUNED_FILE)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["wet", "dry"])
def test_merge_into_a_file_that_is_no_tuned_one_is_refused_and_the_file_stays(kvreg, tune, tmp_path, name, dry):
    into = tmp_path / name
    into.write_text(NO_TUNED_FILE[name])

    answer = kvreg("tuned", "merge", str(tune("h200", {})), "--into", str(into), *dry)

    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert f"--into {into}: required a tuned file or a new name, found another file" in answer.err
    assert [each.name for each in tmp_path.glob(f"*{name}*")] == [name]
    assert into.read_text() == NO_TUNED_FILE[name]


@pytest.mark.parametrize("length", [0, 20, 60, -10])
def test_merge_into_a_tuned_file_that_was_cut_off_sets_it_aside(kvreg, tune, tmp_path, length):
    source = tune("h200", {})
    into = tmp_path / "h200.yaml"
    into.write_text(source.read_text()[:length])

    answer = kvreg("tuned", "merge", str(source), "--into", str(into))

    assert answer.code == 4
    assert len(list(tmp_path.glob("h200.yaml.broken-*"))) == 1
    assert len(yaml.safe_load(into.read_text())["entries"]) == 1


def test_merge_of_a_damaged_file_takes_what_is_good_and_ends_with_4(kvreg, tune, home):
    source = tune("h200", {}, {"bucket": "b1-c256"})
    source.write_text(source.read_text()[:-10])

    answer = kvreg("tuned", "merge", str(source), "--into", str(home / "tuned" / "into.yaml"))

    assert answer.code == 4
    assert "required valid YAML" in answer.err
    assert len(yaml.safe_load((home / "tuned" / "into.yaml").read_text())["entries"]) == 1


def newer(path):
    path.write_text("schema: 2\ndevice: b200\nentries: []\n")


def test_what_holds_nothing_is_one_plain_line_with_one_remedy(kvreg, home):
    folder = home / "tuned"
    folder.mkdir()
    odd = {
        "b200": (newer, "required schema 1, found schema 2", "use the kvreg that wrote it"),
        "h100": (Path.touch, "required a tuned file, found an empty one", "the next `kvreg tune` for this device"),
        "h200": (Path.mkdir, "required a readable YAML file, found: Is a directory", "move it away"),
        "l40s": (os.mkfifo, "required a readable YAML file, found: a pipe", "move it away"),
    }
    for name, (make, _, _) in odd.items():
        make(folder / f"{name}.yaml")

    checked = kvreg("tuned", "check")

    assert checked.code == 4
    for line, (name, (_, found, remedy)) in zip(checked.out.splitlines(), odd.items(), strict=False):
        path = str(folder / f"{name}.yaml")
        assert line.startswith(f"broken: {path}: {found}")
        assert f"; {remedy}" in line
        assert (line.count(";"), line.count(path)) == (1, 1)
        compared = kvreg("tuned", "diff", path, path)
        assert compared.code == 2
        assert compared.err.startswith(f"kvreg: {path}: {found}")


def test_a_folder_that_cannot_be_written_is_one_line_and_exit_2(kvreg, tune, tmp_path):
    closed = Path("/sys")  # nobody, not even root, makes a file there
    if os.geteuid() != 0:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o555)

    answer = kvreg("tuned", "merge", str(tune("h200", {})), "--into", str(closed / "h200.yaml"))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"kvreg: {closed}/h200.yaml: required a file that can be read and replaced, found ")
    assert answer.err.count("\n") == 1


# --- select ---


def test_select_names_a_corrupt_file_in_a_warning_and_in_its_document(kvreg, tune):
    path = tune("h200", {})
    path.write_text(path.read_text().replace("schema", f"{ESCAPE}schema"))

    answer = kvreg("select", "--device", "h200", *SHAPE, "--json")

    assert answer.code == 0
    (result,) = answer.document["results"]
    assert result["ops"]["decode"]["config_source"] == "tuned"  # its good entries serve
    assert str(path) in next(note["text"] for note in result["notes"] if note["code"] == "tuned_fault")
    assert answer.err.count(str(path)) == 1
    assert answer.err.startswith("kvreg: warning: ")
    assert ESCAPE not in answer.out + answer.err


def test_a_warning_is_no_note_too(kvreg, tune):
    tune("h200", {"colour": "red"})

    answer = kvreg("select", "--device", "h200", *SHAPE)

    assert (answer.out + answer.err).count("colour") == 1


@pytest.mark.parametrize(
    ("name", "rule", "source", "code", "text"),
    [
        ("NVIDIA H200", "alias", "tuned", "tuned_name", "is of 'NVIDIA H200', which is h200 by alias"),
        ("NVIDIA_H200", "file_name", "tuned", "tuned_name", "is of 'NVIDIA H200', which is h200 by alias"),
        (
            "NVIDIA H200 NVL",
            "variant",
            "tuned",
            "tuned_parent",
            "was tuned on h200, of which h200-nvl is a sub-model",
        ),
        (
            "NVIDIA H200 MIG 1g.18gb",
            "mig",
            "default",
            "tuned_slice",
            f"`kvreg tune --device h200/mig-1g.18gb {TUNE}` tunes",
        ),
    ],
)
def test_a_whole_cards_entry_serves_its_names_and_sub_models_but_no_slice(kvreg, tune, name, rule, source, code, text):
    path = tune("NVIDIA H200", {}, name="h200.yaml")

    answer = kvreg("select", "--device", name, *SHAPE, "--json")

    assert answer.document["device"]["matched_by"] == rule
    (result,) = answer.document["results"]
    decode = result["ops"]["decode"]
    assert (decode["config_source"], decode["file"]) == (source, str(path) if source == "tuned" else None)
    assert text in next(note["text"] for note in result["notes"] if note["code"] == code)


def test_an_entry_too_big_for_the_card_is_rejected_once_and_the_next_that_fits_serves(
    kvreg, tune, home, cuda, hashes, trace_maker
):
    for variant in cuda.variants():
        if known := hashes.get(str(variant.id)):
            trace_maker(home / "evidence", variant, "cuda", "rtx4090", "sm_89", head_size=96, kernel_hash=known)
    tune("rtx4090", {"resources": {"shared_bytes": 147456}}, {"bucket": "b64-c8192", "config": CONFIG})

    answer = kvreg("select", "--device", "rtx4090", *SHAPE, "--explain")

    assert answer.code == 0
    assert "tile=32 (bucket)" in answer.out
    assert answer.err.count("needs 147456 B of shared memory, rtx4090 has 101376 B: not used") == 1
    assert answer.err.count("\n") == 1


def test_explain_over_every_mode_looks_each_up_in_its_own_layout(kvreg, home):
    out = kvreg("select", "--device", "h200", "--head-size", "96", "--explain").out

    rows = [line for line in out.splitlines() if " on h200: head size 96" in line]
    found = {("int4" in row.split()[1], "bf16, planar.2, causal" in row) for row in rows}
    assert found == {(True, True), (False, False)}


def test_explain_says_what_no_entry_serves_and_what_differs_in_the_nearest(kvreg, tune):
    tune("h200", {"bucket": "b16-c8192"}, {"head_size": 128})

    text = kvreg("select", "--device", "h200", *SHAPE, "--explain").out
    document = kvreg("select", "--device", "h200", *SHAPE, "--explain", "--json").document

    row = next(line for line in text.splitlines() if line.startswith("decode") and "kvreg tune" in line)
    assert "bucket b16-c8192; head_size 128" in row
    notes = [note["text"] for note in document["results"][0]["notes"] if note["code"] == "tuned_miss"]
    assert len(notes) == 3
    assert f"no tuned entry for {DECODE} on h200" in notes[1]
    assert f"`kvreg tune --device h200 {TUNE}` tunes it" in notes[1]


def test_explain_says_so_for_each_group_of_a_models_layers(kvreg, tune, tmp_path):
    heads = {"head_dim": 96, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2}
    config = {"model_type": "llama", "max_position_embeddings": 8192, "torch_dtype": "bfloat16", **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("select", "--device", "h200", "--mode", INT4, "--model", str(tmp_path), "--explain")

    text, document = kvreg(*words).out, kvreg(*words, "--json").document

    assert f"{INT4}: nothing tuned" in text
    (group,) = document["groups"]
    assert [note["code"] for note in group["results"][0]["notes"]].count("tuned_miss") == 3


@pytest.mark.long
def test_an_entry_of_another_triton_is_compiled_on_demand_to_see_whether_it_fits(kvreg, tune, cuda):
    pytest.importorskip("triton")
    (variant,) = [each for each in cuda.variants() if str(each.id) == "triton-none-decode@1"]
    sound = {"rows": 16, "tile": 32, "num_warps": 4, "num_stages": 3, "programs_per_unit": 4, "chunk": 512}
    entry = {
        "variant": str(variant.id),
        "mode": "none",
        "head_size": 256,
        "layout": "planar.1",
        "config": sound,
        "kernel_hash": kernel_hash(variant),
    }
    tune("h200", entry, {**entry, "bucket": "b64-c8192", "config": {**sound, "tile": 128, "num_stages": 8}})

    answer = kvreg("tuned", "check", "--compile", "--json", environment={"TRITON_INTERPRET": "0"})

    assert answer.code == 4
    (found,) = answer.document["findings"]
    assert found["kind"] == "resources"
    assert "b64-c8192: compiled here: " in found["problem"]
    assert "shared memory: required at most 232448 bytes on sm_90" in found["problem"]
