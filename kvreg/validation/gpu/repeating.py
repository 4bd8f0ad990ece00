"""The stages `determinism` and `interchange` of `ci/gpu`: repeated writes, caches exchanged with vLLM's kernels."""

from __future__ import annotations

from typing import Any

from kvreg.core.layouts import known
from kvreg.validation.gpu.rig import Rig
from kvreg.validation.gpu.session import FAILED, OK, SKIPPED

EXCHANGE_HEADS = (64, 96, 128)
EXCHANGE_GROUPS = (4, 1)
WRITES = ((32, 32, 96), (8192, 8, 128))
"""Tokens, KV heads and head size of the repeated writes: one decode step and one long prefill."""
REPEATS = 200


def determinism(rig: Rig) -> tuple[str, str]:
    """Repeat int4 writes beside other work, and vLLM's where its files are given."""
    variants = rig.write_variants()
    writes = ((20, 2, 96),) if rig.options.smoke else WRITES
    common = {**rig.where(), "repeats": 5 if rig.options.smoke else REPEATS}
    tasks = []
    for tokens, heads, size in writes:
        shape = {"tokens": tokens, "kv_heads": heads, "head_size": size}
        for of in variants:
            own = {"variant": str(of.id), **common, **shape}
            tasks += [{**own, "layout": layout} for layout in known(of.mode)]
        if rig.peer():
            tasks.append({"variant": str(variants[0].id), **common, **shape, "peer": rig.peer()})
    found, missing = rig.tasks("determinism", "kvreg.validation.determinism:repeat_writes", tasks, variants[0])
    ours = [each for each in found if each["variant"] != "vllm"]
    counts = [
        f"{each['variant']} {each['tokens']} tokens {each['layout']}: {each['differing']} of {each['repeats']}"
        for each in found
    ]
    text = "differing writes: " + "; ".join(counts)
    wrong_ones = any(each["differing"] for each in ours)
    return (FAILED if wrong_ones or missing else OK), "; ".join([text, *missing])


def interchange(rig: Rig) -> tuple[str, str]:
    """Exchange inline caches with vLLM's kernels."""
    if not rig.peer():
        return SKIPPED, "no --peer"
    heads, groups = ((64,), (4,)) if rig.options.smoke else (EXCHANGE_HEADS, EXCHANGE_GROUPS)
    small: dict[str, Any] = {"contexts": [1, 17], "inputs": ["normal"], "seeds": 1} if rig.options.smoke else {}
    tasks = [
        {"peer": rig.peer(), **rig.where(), "variant": str(of.id), "head_size": size, "group": group, **small}
        for of in rig.write_variants()
        for size in heads
        for group in groups
    ]
    first, *_ = rig.write_variants()
    found, missing = rig.tasks("interchange", "kvreg.validation.interchange:exchange", tasks, first)
    bad = [failure for each in found for failure in each["failures"]]
    return (FAILED if bad or missing else OK), "; ".join([f"{len(found)} exchanged", *bad[:4], *missing])
