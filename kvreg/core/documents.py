"""Answers as JSON documents, schema 1: what `kvreg select --json` prints and programs may rely on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvreg.core.decisions import Decision, Reason
from kvreg.core.devices import Device, Resolution
from kvreg.core.evidence import Evidence
from kvreg.core.modes import Format, Mode
from kvreg.core.requests import Request
from kvreg.core.selections import Chosen, ModeResult, Note, Selection

if TYPE_CHECKING:
    from kvreg.core.expectations.derived import Touching
    from kvreg.core.model_asking import GroupAnswer, ModelAnswer, Total
    from kvreg.core.sizing import CacheSize
    from kvreg.core.tuned_misses import Miss

SCHEMA = 1


def selection(
    answer: Selection,
    sizes: Mapping[Mode, CacheSize] | None = None,
    missed: Mapping[str, Sequence[Miss]] | None = None,
) -> dict[str, Any]:
    """Return the whole answer; every value is one that JSON knows.

    `sizes`: of the cache that was asked about. `missed`: by mode, what was looked for among tuned entries in vain;
    each becomes a note.
    """
    told = _told(answer.results, missed or {})
    return {
        "schema": SCHEMA,
        "device": device(answer.resolution),
        "request": request(answer.request),
        "results": [result(each, answer.resolution.notes, (sizes or {}).get(each.mode)) for each in told],
    }


def device(found: Resolution) -> dict[str, Any]:
    """Return the device and the rule that led to it."""
    one: Device = found.device
    return {
        "key": one.key,
        "name": one.name,
        "platform": one.platform,
        "arch": one.arch,
        "matched_by": found.matched_by,
    }


def model(answer: ModelAnswer, missed: Sequence[Mapping[str, Sequence[Miss]]] = ()) -> dict[str, Any]:
    """Return a whole model's answer: a request and its results for each group of layers, and the cache by mode.

    `missed`: of each group, as `selection` takes it; empty where it was not looked for.
    """
    told = zip(answer.groups, missed or [{}] * len(answer.groups), strict=True)
    read = answer.model
    return {
        "schema": SCHEMA,
        "device": device(answer.resolution),
        "model": {
            "folder": str(read.folder),
            "architecture": read.architecture,
            "model_type": read.model_type,
            "known": read.known,
            "dtype": read.dtype,
            "max_context": read.max_context,
            "layers": read.layers,
            "refusal": reason(read.refusal) if read.refusal is not None else None,
            "notes": [note(each) for each in read.notes],
        },
        "groups": [group(replace(each, results=_told(each.results, some))) for each, some in told],
        "totals": [total(each) for each in answer.totals],
    }


def group(answer: GroupAnswer) -> dict[str, Any]:
    """Return one group of layers; `results` is empty where the group is refused before any variant is looked at."""
    asked = answer.group
    return {
        "layers": list(asked.layers),
        "cached_layers": asked.cached,
        "window": asked.window,
        "softcap": asked.softcap,
        "refusal": reason(asked.refusal) if asked.refusal is not None else None,
        "request": request(answer.request),
        "results": [result(each) for each in answer.results],
    }


def total(answer: Total) -> dict[str, Any]:
    """Return one mode for the whole model."""
    return {
        "mode": answer.mode.value,
        "verdict": answer.verdict,
        "layers_served": answer.served,
        "cache": cache(answer.size),
    }


def cache(size: CacheSize) -> dict[str, Any]:
    """Return the size of a cache in bytes, and what of it fits the card; null where its memory is unknown."""
    return {
        "layers": size.layers,
        "bytes": size.bytes,
        "bf16_bytes": size.bf16_bytes,
        "memory_bytes": size.memory_bytes,
        "weights_bytes": size.weights_bytes,
        "sequences_fit": size.sequences_fit,
        "context_fit": size.context_fit,
    }


def note(each: Note) -> dict[str, str]:
    """Return a note."""
    return {"code": each.code, "text": each.text}


def request(asked: Request) -> dict[str, Any]:
    """Return the request with what was assumed; `mode` is null when every mode was asked for."""
    return {
        "device": asked.device,
        "mode": asked.mode.value if asked.mode is not None else None,
        "head_size": asked.head_size,
        "q_heads": asked.q_heads,
        "kv_heads": asked.kv_heads,
        "page": asked.page,
        "dtype": asked.dtype,
        "features": list(asked.features),
        "batch": asked.batch,
        "context": asked.context,
        "layout": str(asked.layout) if asked.layout is not None else None,
        "accuracy": asked.accuracy,
        "assumed": list(asked.assumed),
    }


def result(answer: ModeResult, device_notes: tuple[str, ...] = (), size: CacheSize | None = None) -> dict[str, Any]:
    """Return one mode's result; notes on how the device was found stand before its own.

    `cache` is null unless the number of layers was given.
    """
    return {
        "mode": answer.mode.value,
        "verdict": answer.verdict,
        "layout": str(answer.layout),
        "format": stored(answer.format),
        "bytes_per_token_head": answer.bytes_per_token_head,
        "compression": round(answer.compression, 4),
        "cache": cache(size) if size is not None else None,
        "ops": {op.value: chosen(each) for op, each in answer.ops.items()},
        "tier": answer.tier.value if answer.tier is not None else None,
        "expectations": [expectation(each) for each in answer.expectations],
        "reason": answer.reason,
        "notes": [
            *({"code": "device", "text": text} for text in device_notes),
            *(note(each) for each in answer.notes),
        ],
        "decisions": [decision(each) for each in answer.decisions],
    }


def expectation(each: Touching) -> dict[str, Any]:
    """Return a recorded exception; `kvreg deselections show ID` has the rest of it."""
    return {"id": each.id, "expect": each.expect, "issue": each.issue, "review_by": each.review_by}


def stored(form: Format) -> dict[str, Any]:
    """Return how values are stored."""
    return {
        "storage": form.storage,
        "fp8": form.fp8,
        "qmax": form.qmax,
        "rotation_block": form.rotation_block,
        "layout_id": form.layout_id,
        "nibble_order": form.nibble_order,
    }


def chosen(winner: Chosen) -> dict[str, Any]:
    """Return the winner of one op."""
    return {
        "variant": winner.variant,
        "accuracy": winner.accuracy,
        "config": dict(winner.config),
        "config_source": winner.config_source,
        "file": winner.file,
        "evidence": evidence(winner.evidence),
    }


def evidence(record: Evidence) -> dict[str, Any]:
    """Return the evidence as it counts on the device that was asked for."""
    return {
        "tier": record.tier.value,
        "numerics": record.numerics,
        "build": record.build,
        "speed": record.speed,
        "max_rel_error": record.max_rel_error,
        "cosine": record.cosine,
        "seeds": record.seeds,
        "features": list(record.features),
        "resources": _plain(record.resources),
        "timings": [
            {
                "batch": each.batch,
                "context": each.context,
                "group": each.group,
                "us": each.us,
                "bf16_us": each.bf16_us,
                "bf16_variant": each.bf16_variant,
                "fraction_of_limit": each.fraction_of_limit,
            }
            for each in record.timings
        ],
    }


def decision(taken: Decision) -> dict[str, Any]:
    """Return one decision; `variant` is null where there is no variant to decide about."""
    return {
        "variant": taken.variant,
        "op": taken.op.value,
        "verdict": taken.verdict,
        "reasons": [reason(each) for each in taken.reasons],
    }


def reason(failed: Reason) -> dict[str, str]:
    """Return one failed constraint."""
    return {
        "code": failed.code,
        "field": failed.field,
        "required": failed.required,
        "found": failed.found,
        "remedy": failed.remedy,
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is None or isinstance(value, int | float | str)}


def _told(results: Sequence[ModeResult], missed: Mapping[str, Sequence[Miss]]) -> tuple[ModeResult, ...]:
    """Return results with what was looked for in vain among their notes."""
    notes = {mode: [Note("tuned_miss", str(each)) for each in some] for mode, some in missed.items()}
    return tuple(replace(each, notes=(*each.notes, *notes.get(each.mode, ()))) for each in results)
