"""kvreg maps (device, KV quantization mode, head size) to validated kernel variants, with their numbers.

    import kvreg

    selection = kvreg.select("h200", "int4_per_token_head", 96)
    cache = kvreg.KVCache.allocate(selection, pages=1024)
    plan = kvreg.plan(cache, cu_q, seq_lens, max_context=8192)      # once a step
    kvreg.write(cache, k, v, slots)
    out = kvreg.attend(q, cache, page_table, seq_lens, cu_q, plan)

Importing kvreg loads no torch; the names that work on tensors load it on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvreg.core import errors
    from kvreg.core.asking import ask as select
    from kvreg.core.modes import Mode
    from kvreg.core.selections import Selection
    from kvreg.runtime.attention import attend, write
    from kvreg.runtime.cache import KVCache
    from kvreg.runtime.pages import convert, copy_pages, dequantize
    from kvreg.runtime.plan import plan

__all__ = [
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

_HOMES = {
    "KVCache": "kvreg.runtime.cache:KVCache",
    "Mode": "kvreg.core.modes:Mode",
    "Selection": "kvreg.core.selections:Selection",
    "attend": "kvreg.runtime.attention:attend",
    "convert": "kvreg.runtime.pages:convert",
    "copy_pages": "kvreg.runtime.pages:copy_pages",
    "dequantize": "kvreg.runtime.pages:dequantize",
    "errors": "kvreg.core.errors",
    "plan": "kvreg.runtime.plan:plan",
    "select": "kvreg.core.asking:ask",
    "write": "kvreg.runtime.attention:write",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvreg' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    loaded = import_module(module)
    value = getattr(loaded, attribute) if attribute else loaded
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
