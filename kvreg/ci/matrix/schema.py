"""What a file of runners may say. pydantic is imported here and nowhere else in the package.

The JSON schema that editors use, ci/runners.schema.json, is generated from this module:
python -m kvreg.ci.matrix.schema
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")]
RelativePath = Annotated[str, StringConstraints(pattern=r"^(\.|\.?[A-Za-z0-9_][A-Za-z0-9_./-]*)$")]
Module = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*$")]


class Closed(BaseModel):
    """Base: no key that is not declared."""

    model_config = ConfigDict(extra="forbid")


class StackRecord(Closed):
    """Versions that a job installs; one that is left out is what the machine has."""

    python: Version | None = None
    torch: Version | None = None
    triton: Version | None = None


class SuiteRecord(Closed):
    """Tests that a job runs."""

    tests: list[RelativePath] = Field(min_length=1, description="Files or folders of tests.")
    marker: str | None = Field(None, description="pytest's -m.")
    modules: list[Module] = Field([], description="Modules that the job loads by name, which no import shows.")
    interprets: list[Word] = Field([], description="Platforms whose kernels its tests run in Triton's interpreter.")


class RunnerRecord(Closed):
    """One kind of machine that takes jobs."""

    name: Word
    device: str = Field(description="A device of `kvreg devices`; a MIG slice as h200/mig-1g.18gb.")
    labels: list[Word] = Field(
        min_length=1, description="GitHub's runs-on: a hosted label, or self-hosted and others."
    )
    queue: Word = Field(description="Buildkite's agent queue.")
    suite: Word
    stacks: list[Word] = Field(min_length=1)


class PathsRecord(Closed):
    """What a change of a file means where no import tells; the longest prefix counts."""

    every_job: list[RelativePath] = []
    no_job: list[RelativePath] = []


class RunnerFile(Closed):
    """Runners, and what runs on them."""

    schema_: Literal[1] = Field(alias="schema")
    sources: list[RelativePath] = Field(description="Folders of the checkout from which modules are imported.")
    paths: PathsRecord
    stacks: dict[Word, StackRecord]
    suites: dict[Word, SuiteRecord]
    runners: list[RunnerRecord]


def text() -> str:
    """Return the JSON schema as the file holds it."""
    made = RunnerFile.model_json_schema(by_alias=True)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "kvreg runners"}
    return json.dumps(whole, indent=2) + "\n"


def keys_at(location: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the keys that a file may have at a place of it, for a near miss."""
    kinds: dict[str, type[Closed]] = {
        "paths": PathsRecord,
        "stacks": StackRecord,
        "suites": SuiteRecord,
        "runners": RunnerRecord,
    }
    model: type[Closed] = kinds.get(str(location[0]), RunnerFile) if location else RunnerFile
    return tuple(field.alias or name for name, field in model.model_fields.items())


if __name__ == "__main__":
    print(text(), end="")
