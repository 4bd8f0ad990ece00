"""Reads a tuned file, `<folder>/<device key, "/" as "_">.yaml`; the tuner alone writes one. Imports pydantic and YAML.

An entry that is not what it should be is named and left out, the good ones survive; so they do where the file as a
whole is damaged (`kvreg.core.tuned_salvage`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
    model_validator,
)

from kvreg.core import schema_faults, tuned_salvage, yaml_files
from kvreg.core.buckets import Bucket, bucket
from kvreg.core.errors import BadFile, NewerFile, UsageError, wrong
from kvreg.core.layouts import LayoutId
from kvreg.core.modes import Mode
from kvreg.core.requests import DTYPES, FEATURES, Op
from kvreg.core.variants import VariantId

SCHEMA = 1


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a check that the text is one that `parse` reads."""

    def check(text: str) -> str:
        try:
            parse(text)
        except UsageError as error:
            raise ValueError(error.message) from None
        return text

    return AfterValidator(check)


Word = Annotated[str, StringConstraints(pattern=r"^[ -~]{1,200}$")]
"""Free text that may be printed: an escape sequence in a file must not reach a terminal."""
Micros = Annotated[FiniteFloat, Field(ge=0)]
Fraction = Annotated[FiniteFloat, Field(ge=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True)]
Dtype = Annotated[str, StringConstraints(pattern=f"^({'|'.join(DTYPES)})$")]
Feature = Annotated[str, StringConstraints(pattern=f"^({'|'.join(FEATURES)})$")]
Utc = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?$")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EntryRecord(_Record):
    """One tuned configuration of one variant for one shape and bucket.

    The fields from `variant` to `bucket` say what was tuned: a file holds one entry for each. `date` is required and
    stands last, so that an entry that was cut off is never taken for a whole one.
    """

    variant: Annotated[str, _read_by(VariantId.parse)]
    op: Op
    mode: Mode
    head_size: Count
    group: Count
    page: Count
    dtype: Dtype
    layout: Annotated[str, _read_by(LayoutId.parse)]
    features: list[Feature]
    bucket: Annotated[str, _read_by(Bucket.parse)]
    config: dict[Word, Whole]
    latency_us: Micros | None = None
    default_latency_us: Micros | None = None
    """Of the variant's own default, in the same run."""
    improvement: FiniteFloat | None = None
    """1 - latency_us / default_latency_us; 0 where the default itself won."""
    tie: bool = False
    """Whether another finalist could not be told from the winner; the incumbent is kept then."""
    fraction_of_limit: Fraction | None = None
    spread: Fraction | None = None
    """Width of the middle half of the winner's samples over their median."""
    gate: dict[str, Any] = {}
    resources: dict[Word, int | Word | None] = {}
    """registers, spill_bytes, shared_bytes of the compiled config."""
    environment: dict[Word, Word] | None = None
    """Versions that it was made with; None: the file's own."""
    kernel_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    source: Literal["measured", "estimated", "simulated"]
    date: Utc

    @model_validator(mode="after")
    def _bucket_of_op(self) -> Self:
        stated = Bucket.parse(self.bucket)
        if not stated.is_of(self.op):
            form = "tTOKENS" if self.op is Op.WRITE else "bBATCH-cCONTEXT"
            raise ValueError(f"bucket {self.bucket}: required {form}, as {self.op} counts its work")
        if (rounded := bucket(self.op, stated.batch, stated.context)) != stated:
            raise ValueError(f"bucket {self.bucket}: required one that lookups ask for, such as {rounded}")
        return self

    @property
    def key(self) -> tuple[str, ...]:
        """What was tuned: two entries of one key answer the same requests."""
        group = "" if self.op is Op.WRITE else str(self.group)  # a write does not know of query heads
        shape = (self.variant, self.op, self.mode, str(self.head_size), group, str(self.page))
        return (*shape, self.dtype, self.layout, " ".join(sorted(self.features)), self.bucket)

    @property
    def shared_bytes(self) -> int | None:
        """Shared memory of a block; None where the tuner could not tell."""
        found = self.resources.get("shared_bytes")
        return found if isinstance(found, int) else None

    def __str__(self) -> str:
        group = "" if self.op is Op.WRITE else f", group {self.group}"
        return f"{self.variant}, head size {self.head_size}{group}, page {self.page}, {self.dtype}, {self.bucket}"


class Frame(_Record):
    """What stands around a tuned file's entries, which are read one by one."""

    schema_: Literal[1] = Field(alias="schema")
    device: Word
    environment: dict[Word, Word] = {}
    entries: list[Any]


@dataclass(frozen=True, slots=True)
class Contents:
    """A tuned file as far as it can be read; every entry states its environment."""

    device: str
    environment: Mapping[str, str]
    entries: tuple[EntryRecord, ...]
    faults: tuple[str, ...] = ()
    """One line for each entry left out, and one for a file that is no YAML."""


def read(path: Path, *, simulated: bool = False) -> Contents:
    """Return what `path` holds; `simulated` accepts entries of replayed spaces, which serve nobody else.

    Raises NewerFile for a file of a later schema, BadFile when no entry and no device can be made out.
    """
    try:
        loaded, faults = yaml_files.load(path), []
    except BadFile as error:
        loaded, faults = tuned_salvage.salvage(path), [f"{error.message}; good entries are used"]
        if loaded is None:
            raise
    try:
        frame = Frame.model_validate(loaded)
    except ValidationError as error:
        raise _no_frame(path, loaded, error) from None
    entries: dict[tuple[str, ...], EntryRecord] = {}
    for number, one in enumerate(frame.entries, start=1):
        try:
            entry = EntryRecord.model_validate(one)
        except ValidationError as error:
            faults.append(f"{path}, entry {number}: {_first(error)}; left out")
            continue
        if entry.source == "simulated" and not simulated:
            faults.append(f"{path}, entry {number}: simulated: serves under --simulate only; left out")
        elif entry.key in entries:
            faults.append(f"{path}, entry {number}: repeats an earlier one of {entry}; left out")
        else:
            own = frame.environment if entry.environment is None else entry.environment
            entries[entry.key] = entry.model_copy(update={"environment": dict(own)})
    return Contents(frame.device, frame.environment, tuple(entries.values()), tuple(faults))


def index_records(entries: Iterable[EntryRecord]) -> list[dict[str, Any]]:
    """Return the entries as select's index holds them."""
    apart = {"gate", "resources", "default_latency_us", "improvement", "tie", "date"}
    return [{**entry.model_dump(mode="json", exclude=apart), "shared_bytes": entry.shared_bytes} for entry in entries]


def _no_frame(path: Path, loaded: object, error: ValidationError) -> BadFile:
    schema = loaded.get("schema") if isinstance(loaded, dict) else None
    if type(schema) is int and schema > SCHEMA:
        remedy = "read it with the kvreg that wrote it, which is newer"
        return NewerFile(wrong(str(path), required=f"schema {SCHEMA}", found=f"schema {schema}", remedy=remedy))
    remedy = "correct it, or let the next `kvreg tune` set it aside"
    return BadFile(wrong(str(path), required="a tuned file", found=_in_place_of_a_frame(loaded, error), remedy=remedy))


def _in_place_of_a_frame(loaded: object, error: ValidationError) -> str:
    if loaded is None:
        return "an empty one"
    if not isinstance(loaded, dict):
        return "a list" if isinstance(loaded, list) else f"the text {loaded!r:.80}"
    missing = [str(each["loc"][0]) for each in error.errors(include_url=False) if each["type"] == "missing"]
    return f"no {', '.join(missing)}" if missing else _first(error)


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    fault = schema_faults.first(error)
    told = f"required {fault.required}, found {fault.found}"
    return f"{fault.where()}: {told}" if fault.place else told
