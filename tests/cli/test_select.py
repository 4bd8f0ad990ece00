"""`kvreg select` as a process: answers, exit codes, one document with --json, and what it never imports."""

import json
import os
import subprocess
import sys

import pytest

from kvreg.core.kernelhash import kernel_hash
from kvreg.core.modes import Mode
from kvreg.core.registry import backends

INT4 = "int4_per_token_head"
HEADS = (64, 80, 96, 112, 128, 160, 192, 256)

TEXT, NUMBER, BOOL = (str,), (int, float), (bool,)
MAYBE_TEXT, MAYBE_NUMBER = (str, type(None)), (int, float, type(None))
REASON = dict.fromkeys(("code", "field", "required", "found", "remedy"), TEXT)
CACHE = {
    **dict.fromkeys(("layers", "bytes", "bf16_bytes"), NUMBER),
    "memory_bytes": MAYBE_NUMBER,
    "weights_bytes": NUMBER,
    **dict.fromkeys(("sequences_fit", "context_fit"), MAYBE_NUMBER),
}
SCHEMA = {
    "schema": NUMBER,
    "device": dict.fromkeys(("key", "name", "platform", "arch", "matched_by"), TEXT),
    "request": {
        "device": TEXT,
        "mode": MAYBE_TEXT,
        "head_size": NUMBER,
        "q_heads": NUMBER,
        "kv_heads": NUMBER,
        "page": NUMBER,
        "dtype": TEXT,
        "features": [TEXT],
        "batch": NUMBER,
        "context": NUMBER,
        "layout": MAYBE_TEXT,
        "accuracy": TEXT,
        "assumed": [TEXT],
    },
    "results": [
        {
            "mode": TEXT,
            "verdict": TEXT,
            "layout": TEXT,
            "format": {
                "storage": TEXT,
                "fp8": MAYBE_TEXT,
                "qmax": MAYBE_NUMBER,
                "rotation_block": MAYBE_NUMBER,
                "layout_id": TEXT,
                "nibble_order": MAYBE_TEXT,
            },
            "bytes_per_token_head": NUMBER,
            "compression": NUMBER,
            "cache": (type(None),),
            "ops": {
                "*": {
                    "variant": TEXT,
                    "accuracy": TEXT,
                    "config": {"*": NUMBER},
                    "config_source": TEXT,
                    "file": MAYBE_TEXT,
                    "evidence": {
                        "tier": TEXT,
                        "numerics": TEXT,
                        "build": TEXT,
                        "speed": TEXT,
                        "max_rel_error": MAYBE_NUMBER,
                        "cosine": MAYBE_NUMBER,
                        "seeds": NUMBER,
                        "features": [TEXT],
                        "resources": {"*": (int, str, type(None))},
                        "timings": [
                            {
                                "batch": NUMBER,
                                "context": NUMBER,
                                "group": NUMBER,
                                "us": NUMBER,
                                "bf16_us": MAYBE_NUMBER,
                                "bf16_variant": MAYBE_TEXT,
                                "fraction_of_limit": MAYBE_NUMBER,
                            }
                        ],
                    },
                }
            },
            "tier": MAYBE_TEXT,
            "expectations": [{"id": TEXT, "expect": TEXT, "issue": TEXT, "review_by": TEXT}],
            "reason": MAYBE_TEXT,
            "notes": [{"code": TEXT, "text": TEXT}],
            "decisions": [{"variant": MAYBE_TEXT, "op": TEXT, "verdict": TEXT, "reasons": [REASON]}],
        }
    ],
}
"""Keys and types of schema 1, exactly; `*` stands for any key."""


def fits(value, schema, where="document"):
    """Return the places where a document is not as the schema says."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: no object"]
        if "*" in schema:
            return [wrong for key, each in value.items() for wrong in fits(each, schema["*"], f"{where}.{key}")]
        if list(value) != list(schema):
            return [f"{where}: keys {list(value)}"]
        return [wrong for key, each in schema.items() for wrong in fits(value[key], each, f"{where}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: no list"]
        return [wrong for n, each in enumerate(value) for wrong in fits(each, schema[0], f"{where}[{n}]")]
    ok = isinstance(value, schema) and not isinstance(value, bool)
    return [] if ok else [f"{where}: {value!r}"]


@pytest.fixture
def validated(home, trace_maker):
    """A home whose overlay holds evidence for the portable variants on a B200, for head size 96."""
    cuda = next(backend for backend in backends() if backend.name == "cuda")
    for variant in cuda.variants():
        if not variant.id.name.startswith("triton-"):
            continue
        trace_maker(
            home / "evidence", variant, "cuda", "b200", "sm_100", head_size=96, kernel_hash=kernel_hash(variant)
        )
    return home


def test_head_96_on_a_validated_card_is_selected_with_its_rotation(kvreg, validated):
    answer = kvreg("select", "--device", "b200", "--mode", INT4, "--head-size", "96")

    assert (answer.code, answer.err) == (0, "")
    assert "rotation block 32, undo factor 1/32" in answer.out
    assert "triton-int4-decode@1" in answer.out


def test_head_128_shows_a_rotation_block_of_128(kvreg):
    answer = kvreg("select", "--device", "h200", "--head-size", "128")

    assert "rotation block 128, undo factor 1/128" in answer.out


def test_json_is_schema_1_exactly(kvreg, validated):
    answer = kvreg("select", "--device", "b200", "--head-size", "96", "--json")

    assert answer.code == 0
    assert fits(answer.document, SCHEMA) == []
    assert [result["mode"] for result in answer.document["results"]] == [mode.value for mode in Mode]
    (int4,) = [result for result in answer.document["results"] if result["mode"] == INT4]
    assert list(int4["ops"]) == ["write", "decode", "prefill"]
    assert int4["tier"] == "measured"
    assert int4["format"] == {
        "storage": "uint8",
        "fp8": None,
        "qmax": 15.0,
        "rotation_block": 32,
        "layout_id": "planar.2",
        "nibble_order": "even_low",
    }
    assert (int4["bytes_per_token_head"], int4["compression"]) == (104, 3.6923)


def test_the_schema_check_sees_a_wrong_document(kvreg):
    document = kvreg("select", "--device", "h200", "--head-size", "97", "--json").document
    document["results"][0]["compression"] = "twice"
    document["results"][1].pop("tier")

    assert len(fits(document, SCHEMA)) == 2


@pytest.mark.parametrize(("head_size", "nearest"), [("97", "96 and 104"), ("100", "96 and 104"), ("30", "32 and 40")])
@pytest.mark.parametrize("mode", [(), ("--mode", "none"), ("--mode", INT4)], ids=["every", "none", "int4"])
def test_an_illegal_head_size_is_refused_with_both_neighbours(kvreg, head_size, nearest, mode):
    answer = kvreg("select", "--device", "h200", "--head-size", head_size, *mode)

    first = answer.out.splitlines()[0]
    assert (answer.code, answer.err) == (3, "")
    assert first.startswith("refused: ")
    assert f"found {head_size}; the nearest are --head-size {nearest}" in first


@pytest.mark.parametrize("mode", ["fp8_per_token_head", "fp8_per_tensor"])
def test_fp8_on_ampere_is_refused_with_arch_type_and_alternative(kvreg, mode):
    answer = kvreg("select", "--device", "rtx3090", "--mode", mode, "--head-size", "128")

    assert "e4m3fn to 448" in answer.out  # a refused row says how it would be stored
    first = answer.out.splitlines()[0]
    assert (answer.code, answer.err) == (3, "")
    assert "sm_86" in first
    assert "e4m3" in first
    assert "int8_per_token_head" in first
    assert answer.out.splitlines()[-1] == "kvreg select --device rtx3090 --mode int8_per_token_head --head-size 128"


@pytest.mark.parametrize(
    ("device", "fp8", "qmax"), [("mi300x", "e4m3fnuz", 224), ("mi355x", "e4m3fn", 448), ("h200", "e4m3fn", 448)]
)
def test_mi300x_is_fnuz_and_others_are_not(kvreg, device, fp8, qmax):
    document = kvreg("select", "--device", device, "--head-size", "96", "--json").document
    results = {result["mode"]: result for result in document["results"]}

    for mode, size in (("fp8_per_token_head", 200), ("fp8_per_tensor", 192)):
        stored = results[mode]["format"]
        assert (stored["fp8"], stored["qmax"], stored["storage"]) == (fp8, qmax, f"float8_{fp8}")
        assert results[mode]["bytes_per_token_head"] == size


def test_bf16_on_turing_is_refused_with_fp16_as_the_remedy(kvreg):
    answer = kvreg("select", "--device", "t4", "--mode", "none", "--head-size", "128")

    assert answer.code == 3
    assert "--dtype fp16" in answer.out.splitlines()[0]
    assert answer.out.splitlines()[-1] == "kvreg coverage --platform cuda"  # in fp16 it is refused for evidence


def test_layers_add_the_caches_size_beside_bf16_and_what_fits(kvreg):
    arguments = ("select", "--device", "h200", "--mode", INT4, "--head-size", "128", "--layers", "32")

    (result,) = kvreg(*arguments, "--weights-gb", "16", "--json").document["results"]

    assert fits(result["cache"], CACHE) == []
    assert result["cache"] == {
        "layers": 32,
        "bytes": 32 * 8 * 32 * 8192 * 136,
        "bf16_bytes": 32 * 8 * 32 * 8192 * 512,
        "memory_bytes": 141_000_000_000,
        "weights_bytes": 16_000_000_000,
        "sequences_fit": 125_000_000_000 // (32 * 8 * 8192 * 136),
        "context_fit": 125_000_000_000 // (32 * 32 * 8 * 136 * 16) * 16,
    }


@pytest.mark.parametrize("page", ["16", "528", "544"])
def test_group_7_and_page_544_are_selected_with_their_tile_shown(kvreg, home, trace_maker, page):
    cuda = next(backend for backend in backends() if backend.name == "cuda")
    for variant in cuda.variants():
        if variant.mode is Mode.INT8_PER_TOKEN_HEAD:
            asked = {"head_size": 128, "kernel_hash": kernel_hash(variant)}
            trace_maker(home / "evidence", variant, "cuda", "b200", "sm_100", **asked)
    heads = ("--q-heads", "28", "--kv-heads", "4")

    answer = kvreg("select", "--device", "b200", "--mode", "int8_per_token_head", "--head-size", "128", *heads,
                   "--page", page, "--json")  # fmt: skip

    assert answer.code == 0
    ops = answer.document["results"][0]["ops"]
    for op in ("decode", "prefill"):
        tile = ops[op]["config"]["tile"]
        assert tile in (16, 32, 64, 128)  # a power of two up to the cap that a row of 128 has


def test_a_refusal_with_json_is_one_document(kvreg):
    answer = kvreg("select", "--device", "h200", "--mode", INT4, "--head-size", "97", "--json")

    assert (answer.code, answer.err) == (3, "")
    assert fits(answer.document, SCHEMA) == []
    (result,) = answer.document["results"]
    assert result["verdict"] == "refused"
    assert {reason["code"] for each in result["decisions"] for reason in each["reasons"]} == {"head_size"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "h200"),
        ("--device", "h2000", "--head-size", "96"),
        ("--device", "h200", "--head-size", "wide"),
        ("--device", "h200", "--head-size", "96", "--mode", "int5"),
        ("--device", "h200", "--head-size", "96", "--feature", "windows"),
        ("--device", "h200", "--head-size", "96", "--allow", "anything"),
        ("--device", "h200", "--head-size", "96", "--layout", "planar"),
        ("--device", "h200", "--head-size", "0"),
        ("--device", "h200", "--head-size", "96", "--kv-heads", "0"),
        ("--device", "h200", "--head-size", "96", "--layers", "0"),
        ("--device", "h200", "--head-size", "96", "--text-only"),
    ],
    ids=lambda arguments: " ".join(arguments[2:]) or "nothing",
)
def test_a_usage_error_is_exit_2_and_one_line_or_one_document(kvreg, arguments):
    plain = kvreg("select", *arguments)
    document = kvreg("select", *arguments, "--json")

    assert (plain.code, plain.out, plain.err.count("\n")) == (2, "", 1)
    assert (document.code, document.err) == (2, "")
    assert set(document.document) == {"schema", "error"}


def test_no_device_and_no_card_is_exit_6_naming_both_ways(kvreg):
    answer = kvreg("select", "--head-size", "96", environment={"CUDA_VISIBLE_DEVICES": "", "PATH": ""})

    assert answer.code == 6
    assert "--device" in answer.err
    assert "KVREG_DEVICE" in answer.err


def test_the_device_of_the_environment_serves(kvreg):
    answer = kvreg("select", "--head-size", "97", environment={"KVREG_DEVICE": "mi300x"})

    assert answer.code == 3
    assert "mi300x" in answer.out


def test_a_wrong_family_is_an_error_and_no_silent_change(kvreg):
    answer = kvreg("select", "--device", "h200", "--head-size", "96", environment={"KVREG_BACKEND": "trition"})

    assert (answer.code, answer.out) == (2, "")
    assert "did you mean triton?" in answer.err


def test_a_family_of_another_platform_refuses_every_variant(kvreg, validated):
    arguments = ("select", "--device", "b200", "--mode", INT4, "--head-size", "96")

    answer = kvreg(*arguments, environment={"KVREG_BACKEND": "torch"})

    assert answer.code == 3
    assert "KVREG_BACKEND: required torch, found triton" in answer.out.splitlines()[0]


def test_what_is_not_said_is_listed_as_assumed(kvreg):
    answer = kvreg("select", "--device", "h200", "--head-size", "96", "--batch", "1", "--json")

    assert answer.document["request"]["batch"] == 1
    assert set(answer.document["request"]["assumed"]) == {
        "q_heads",
        "kv_heads",
        "page",
        "dtype",
        "features",
        "context",
        "layout",
        "accuracy",
    }


def test_a_pipe_gets_no_colour_and_no_drawing(kvreg, validated):
    out = kvreg("select", "--device", "b200", "--head-size", "96", "--explain").out

    assert out.isascii()
    assert "\x1b" not in out


def test_a_terminal_gets_the_table_drawn(home, validated):
    import contextlib

    leader, follower = os.openpty()
    code = "from kvreg.cli.main import run; run(['select', '--device', 'b200', '--head-size', '96'])"
    environment = {**os.environ, "KVREG_HOME": str(home), "TERM": "xterm", "COLUMNS": "140"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=follower, env=environment) as process:
        os.close(follower)
        drawn = b""
        with contextlib.suppress(OSError):  # a terminal whose last writer left reads as an error on Linux
            while chunk := os.read(leader, 65536):
                drawn += chunk
        process.wait(timeout=60)
    os.close(leader)

    assert process.returncode == 0
    assert "─" in drawn.decode()
    assert "triton-int4-decode@1" in drawn.decode()


HEAVY = ("torch", "triton", "numpy", "pydantic", "yaml", "rich", "importlib.metadata", "hashlib", "subprocess")


@pytest.mark.parametrize("entries", [0, 400])
def test_a_warm_select_imports_neither_yaml_nor_pydantic_nor_torch(kvreg, validated, entries):
    if entries:
        _tune(validated, entries)
    arguments = ("select", "--device", "b200", "--head-size", "96")
    # Kernel source newer than a file clock's tick is not indexed yet; a second process is warm in any case after it.
    at_exit = (
        "import atexit; atexit.register(lambda: print('loaded:', "
        f"[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr))"
    )
    for _ in range(3):
        kvreg(*arguments)

    answer = kvreg(*arguments, before=at_exit)

    assert answer.code == 0
    assert answer.err.strip() == "loaded: []"


def _tune(home, count):
    lines = ["schema: 1", "device: b200", "entries:"]
    for number in range(count):
        bucket = f"b{1 << number % 8}-c{256 << number // 8 % 8}"
        record = {
            "variant": "triton-int4-decode@1",
            "op": "decode",
            "mode": INT4,
            "head_size": 32 + 8 * (number % 50),
            "group": 4,
            "page": 16,
            "dtype": "bf16",
            "layout": "planar.2",
            "features": ["causal"],
            "bucket": bucket,
            "config": {"tile": 64},
            "kernel_hash": "0" * 64,
            "source": "measured",
            "date": "2026-11-30",
        }
        lines.append(f"- {json.dumps(record)}")
    path = home / "tuned" / "b200.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines))
    os.utime(path, (1e9, 1e9))


def test_two_processes_at_once_both_answer(home):
    code = "from kvreg.cli.main import run; run(['select', '--device', 'h200', '--head-size', '97', '--json'])"
    environment = {**os.environ, "KVREG_HOME": str(home)}

    running = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    done = [process.communicate() for process in running]

    assert [process.returncode for process in running] == [3] * 4
    assert len({out for out, _ in done}) == 1
    assert {err for _, err in done} == {b""}
    assert list(home.rglob("*.tmp")) == []


def test_a_home_that_is_a_dead_end_still_answers_with_one_warning(kvreg, home):
    home.mkdir()
    (home / "cache").write_text("")

    answer = kvreg("select", "--device", "h200", "--head-size", "97")

    assert answer.code == 3
    assert answer.out.startswith("refused:")
    assert len([line for line in answer.err.splitlines() if "every call reads YAML" in line]) <= 1


H200 = ("select", "--device", "h200", "--head-size", "96")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "NONE"), "found 'NONE'; did you mean none?"),
        (("--mode", "Int4"), "found 'Int4'; did you mean int4_per_token_head?"),
        (("--dtype", "BF16"), "found 'BF16'; did you mean bf16?"),
        (("--allow", "interpred"), "allow: required interpreted, found 'interpred'; did you mean interpreted?"),
        (("--allow", "INTERPRETED"), "did you mean interpreted?"),
        (("--allow", "measured"), "measured evidence is taken anyway; leave it out"),
        (("--allow", "declared"), "declared means without evidence, and is never taken; leave it out"),
        (("--weights-gb", "16"), "--weights-gb is taken off what the cache may fill; add --layers N, or --model"),
        (("--weights-gb", "0"), "add --layers N, or --model FOLDER"),
    ],
)
def test_a_near_miss_is_named_and_nothing_is_left_out_in_silence(here, options, message):
    answer = here(*H200, *options)

    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_what_fits_is_said_in_plain_words(here):
    plain = here(*H200, "--layers", "32").out
    less = here(*H200, "--layers", "32", "--weights-gb", "16").out

    both = "fit: how many sequences of 8192 tokens, or what context for all 32, go into 141 GB of card memory"
    assert f"{both}, with nothing off for weights (--weights-gb N)\n" in plain
    assert f"{both} less 16 GB of weights\n" in less


def test_the_next_command_asks_for_the_features_again(kvreg):
    told = kvreg("select", "--device", "cpu", "--head-size", "64", "--mode", "none", "--feature", "window").out

    assert told.splitlines()[-1] == "kvreg select --device cpu --mode none --head-size 64 --feature window --explain"
