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
