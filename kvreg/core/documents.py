"""A Selection as a JSON document, schema 1: what `kvreg select --json` prints and programs may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvreg.core.decisions import Decision, Reason
from kvreg.core.evidence import Evidence
from kvreg.core.modes import Format
from kvreg.core.requests import Request
from kvreg.core.selections import Chosen, ModeResult, Selection

SCHEMA = 1


def selection(answer: Selection) -> dict[str, Any]:
    """Return the whole answer; every value is one that JSON knows."""
    device = answer.resolution.device
    return {
        "schema": SCHEMA,
        "device": {
            "key": device.key,
            "name": device.name,
            "platform": device.platform,
            "arch": device.arch,
            "matched_by": answer.resolution.matched_by,
        },
        "request": request(answer.request),
        "results": [result(each, answer.resolution.notes) for each in answer.results],
    }


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


def result(answer: ModeResult, device_notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return one mode's result; notes on how the device was found stand before its own."""
    return {
        "mode": answer.mode.value,
        "verdict": answer.verdict,
        "layout": str(answer.layout),
        "format": stored(answer.format),
        "bytes_per_token_head": answer.bytes_per_token_head,
        "compression": round(answer.compression, 4),
        "ops": {op.value: chosen(each) for op, each in answer.ops.items()},
        "tier": answer.tier.value if answer.tier is not None else None,
        "expectations": [],
        "reason": answer.reason,
        "notes": [
            *({"code": "device", "text": text} for text in device_notes),
            *({"code": note.code, "text": note.text} for note in answer.notes),
        ],
        "decisions": [decision(each) for each in answer.decisions],
    }


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
