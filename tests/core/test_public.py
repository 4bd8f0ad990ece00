"""The public surface of the package, and what loading it costs."""

import subprocess
import sys

import pytest

import kvreg

PUBLIC = [
    "KVCache",
    "Mode",
    "Selection",
    "attend",
    "convert",
    "copy_pages",
    "dequantize",
    "errors",
    "plan",
    "select",
    "write",
]


def fresh(code):
    """Run code in a process of its own and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_public_names_are_these_and_no_others():
    assert kvreg.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(kvreg))


def test_importing_kvreg_loads_nothing_heavy():
    heavy = ("torch", "triton", "numpy", "pydantic", "yaml", "rich", "click")

    assert fresh(f"import kvreg, sys; print([name for name in {heavy!r} if name in sys.modules])") == "[]"


@pytest.mark.parametrize("name", ["Mode", "Selection", "errors", "select"])
def test_what_needs_no_torch_loads_none(name):
    assert fresh(f"import kvreg, sys; kvreg.{name}; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads_and_is_the_same_object_each_time(name):
    if name in ("KVCache", "attend", "convert", "copy_pages", "dequantize", "plan", "write"):
        pytest.importorskip("torch")

    assert getattr(kvreg, name) is getattr(kvreg, name)
    assert (getattr(kvreg, name).__doc__ or "").strip()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kvreg' has no attribute 'quantize'"):
        _ = kvreg.quantize


def test_select_from_python_answers_for_the_cpu():
    selection = kvreg.select("cpu", "int4_per_token_head", 97)

    assert isinstance(selection, kvreg.Selection)
    with pytest.raises(kvreg.errors.Refused, match="96 and 104"):
        _ = selection.result
    # One word stands for a list of it.
    assert kvreg.select("cpu", "int4_per_token_head", 97, features="causal", allow="interpreted").results


REFUSED_TYPES = {
    "device": ([5, 1.5, True, b"h200", ["h200"]], "a key, name, PCI id or architecture"),
    "mode": ([5, 1.5, b"none", ["none"], {}], "one of none, fp8_per_tensor"),
    "head_size": ([None, 1.5, "64", [64], {}], "a whole number from 1"),
    "features": ([5, 1.5, object(), [["causal"]], b"causal"], "one of causal, non_causal"),
    "layout": ([5, 1.5, b"planar.1", ["planar.1"], {}], "one of planar.1, planar.2, inline.1"),
    "dtype": ([5, ["bf16"], {}], "one of bf16, fp16, fp32"),
    "accuracy": ([5, ["exact"], {}], "one of exact, fast"),
    "allow": ([None, 5, object(), [["interpreted"]], b"interpreted"], "interpreted"),
}


@pytest.mark.parametrize("argument", REFUSED_TYPES)
def test_an_argument_of_another_type_is_a_usage_error_of_one_line(argument):
    values, required = REFUSED_TYPES[argument]
    for value in values:
        with pytest.raises(kvreg.errors.UsageError) as caught:
            kvreg.select(**{"device": "cpu", "mode": "none", "head_size": 64, argument: value})

        message = str(caught.value)
        assert message.startswith(argument.removesuffix("s"))  # `feature` is about one of them
        assert required in message
        assert ", found " in message
        assert "\n" not in message


def test_what_was_found_instead_of_a_word_is_one_line_however_it_prints():
    class Table:
        def __repr__(self):
            return "[[1, 2],\n [3, 4]]"

        def __eq__(self, other):
            raise ValueError("which of the elements?")

        __hash__ = None

    for argument in REFUSED_TYPES:
        with pytest.raises(kvreg.errors.UsageError, match=r"found \[\[1, 2\], \[3, 4\]\]"):
            kvreg.select(**{"device": "cpu", "mode": "none", "head_size": 64, argument: Table()})
