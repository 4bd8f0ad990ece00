"""Reads a tuned file, `<folder>/<device key, "/" as "_">.yaml`; the tuner alone writes one. Imports pydantic and YAML.

An entry that is not what it should be is named and left out, the good ones survive; so does the file's index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints, ValidationError

from kvreg.core import yaml_files
from kvreg.core.buckets import Bucket
from kvreg.core.errors import BadFile, UsageError, wrong
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import Op
from kvreg.core.variants import VariantId

Micros = Annotated[FiniteFloat, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EntryRecord(_Record):
    """One tuned configuration of one variant for one shape and bucket."""

    variant: str
    op: Op
    mode: Mode
    head_size: int
    group: int
    page: int
    dtype: str
    layout: str
    features: list[str]
    bucket: str
    config: dict[str, int]
    latency_us: Micros | None = None
    default_latency_us: Micros | None = None
    fraction_of_limit: Micros | None = None
    spread: Micros | None = None
    gate: dict[str, Any] = {}
    resources: dict[str, int | str | None] = {}
    """registers, spill_bytes, shared_bytes of the compiled config."""
    kernel_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    source: Literal["measured", "estimated"]
    date: str
    environment: dict[str, str] = {}
    """Where it differs from the file's: an entry kept from an earlier run."""


class TunedFile(_Record):
    """The frame of a tuned file; entries are read one by one."""

    schema_: Literal[1] = Field(alias="schema")
    device: str
    environment: dict[str, str] = {}
    entries: list[Any]


def read(path: Path) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Return (device key, entry records for the index, one line for each entry left out).

    Raises BadFile when the file as a whole is no tuned file.
    """
    try:
        frame = TunedFile.model_validate(yaml_files.load(path))
    except ValidationError as error:
        raise BadFile(wrong(str(path), required="a tuned file", found=_first(error), remedy="tune again")) from None
    records, faults = [], []
    for number, loaded in enumerate(frame.entries, start=1):
        try:
            entry = EntryRecord.model_validate(loaded)
            VariantId.parse(entry.variant), LayoutId.parse(entry.layout), Bucket.parse(entry.bucket)
        except ValidationError as error:
            faults.append(f"{path}, entry {number}: {_first(error)}; left out")
        except UsageError as error:
            faults.append(f"{path}, entry {number}: {error.message}; left out")
        else:
            record = entry.model_dump(mode="json", exclude={"gate", "resources", "default_latency_us", "date"})
            record["environment"] = {**frame.environment, **entry.environment}
            record["shared_bytes"] = entry.resources.get("shared_bytes")
            records.append(record)
    return frame.device, records, faults


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    return f"{where}: {first['msg'].lower()}, found {first['input']!r:.80}"
