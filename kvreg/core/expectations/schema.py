"""What a file of expectations may say. pydantic is imported here and nowhere else in the package.

The JSON schema that editors use, ci/expectations.schema.json, is generated from this module:
python -m kvreg.core.expectations.schema
"""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from kvreg.core.expectations.vocabulary import EVERYWHERE, MEANINGS

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Name = Annotated[str, StringConstraints(pattern=r"^(not )?[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
Bounds = Annotated[str, StringConstraints(pattern=r"^\s*(<|<=|>=|==|>)\s*\d")]
Issue = Annotated[str, StringConstraints(pattern=r"^(https?://\S+|[\w.-]+/[\w.-]+#\d+)$")]
VariantId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*@[1-9][0-9]*$")]


def _day(text: str) -> str:
    date.fromisoformat(text)
    return text


Day = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$", json_schema_extra={"format": "date"}), AfterValidator(_day)]


class Closed(BaseModel):
    """Base: no key that is not declared."""

    model_config = ConfigDict(extra="forbid")


class Predicate(Closed):
    """Conditions on the place where tests run; all of them must hold."""

    platform: Name | list[Name] | None = Field(None, description=MEANINGS["platform"])
    arch: Name | list[Name] | None = Field(None, description=MEANINGS["arch"])
    device: Name | list[Name] | None = Field(None, description=MEANINGS["device"])
    memory_gib: Bounds | None = Field(None, description=MEANINGS["memory_gib"])
    triton: Bounds | None = Field(None, description=MEANINGS["triton"])
    torch: Bounds | None = Field(None, description=MEANINGS["torch"])
    driver: Bounds | None = Field(None, description=MEANINGS["driver"])


class Entry(Closed):
    """One recorded exception."""

    test: Text = Field(description="Exact node id; * and ? only inside the parameter tail [...].")
    when: Literal["everywhere"] | Predicate = Field(description=f"{EVERYWHERE}, or conditions on declared words.")
    expect: Literal["xfail", "flaky", "skip"]
    kind: Literal["crash", "hang", "oom", "unsupported"] | None = Field(None, description="Of a skip, required.")
    reason: Text
    issue: Issue = Field(description="URL, or owner/repository#number.")
    owner: Text
    added: Day
    review_by: Day
    invalidates: list[VariantId] = Field([], description="Variants that are not validated where it holds.")
    touches: list[VariantId] = Field([], description="Variants that the test runs and that stay validated.")
    hits: Annotated[int, Field(gt=0)] | None = Field(None, description="How many ids a glob is meant to take.")
    evidence: dict[str, str] = Field({}, description="What was seen: error, seeds, environment, last failing run.")


class ExpectationFile(Closed):
    """A list of expectations."""

    schema_: Literal[1] = Field(alias="schema")
    expectations: list[Entry]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a file of expectations."""
    made = ExpectationFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "kvreg expectations"}


def text() -> str:
    """Return the JSON schema as the file holds it."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    print(text(), end="")
