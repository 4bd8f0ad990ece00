"""The fields of a config.json, read by type under the names that different architectures give one thing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from kvreg.core.errors import BadFile, wrong
from kvreg.core.input_files import no_file

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HEAD_SIZE = ("head_dim", "kv_channels")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim")
SOFTCAP = ("attn_logit_softcapping", "attn_logit_softcap")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_context_length")

TEXT_PARTS = ("text_config", "language_config", "llm_config")
"""Where a model of several modalities keeps the fields of its language model."""

MOST = 2**31 - 1
"""Of any count: lengths, offsets and page numbers are int32 in kernels, and sizes computed from more mean nothing."""

MOST_LAYERS = 10_000
"""Each layer is looked at by itself. The deepest model in use, Llama 3.1 405B, has 126."""

MOST_BYTES = 16_000_000
"""A config.json holds kilobytes; a device or a weight file named by mistake must not fill the memory."""

_AGAIN = "give the folder of a Hugging Face model"


class Fields:
    """One JSON object of a config.json; what it leaves out is taken from `defaults`."""

    def __init__(self, values: Mapping[str, Any], path: Path, defaults: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.path = path
        self.defaults = defaults or {}

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """Return the same fields over other defaults."""
        return Fields(self.values, self.path, defaults)

    def get(self, *names: str) -> Any:
        """Return the first value that the file gives one of the names, else the defaults'; a null there is none."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if any(name in self.values for name in names):
            return None
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def text(self, name: str) -> str | None:
        """Return a text; raises BadFile for another type."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a text", value)
        return value

    def flag(self, name: str) -> bool:
        """Return whether a flag is set; absent is not. Raises BadFile for what is no boolean."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return bool(value)

    def count(self, *names: str, most: int = MOST) -> int | None:
        """Return a whole number from one to `most`, None where no name has a value; raises BadFile for all else."""
        value = self.get(*names)
        if value is not None and not is_count(value, most):
            required = "a whole number from 1" if not is_count(value, None) else f"at most {most}"
            raise self._wrong(self._named(names), required, value)
        return None if value is None else int(value)

    def whole(self, name: str) -> int:
        """Return a whole number from 0; absent is 0. Raises BadFile for anything else."""
        value = self.get(name)
        return 0 if value is None or (value == 0 and not isinstance(value, bool)) else self.needed(name)

    def number(self, *names: str) -> float | None:
        """Return a positive number, None where no name has a value; raises BadFile for anything else."""
        value = self.get(*names)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MOST
        ):
            raise self._wrong(self._named(names), "a number above 0", value)
        return None if value is None else float(value)

    def needed(self, *names: str, most: int = MOST) -> int:
        """Return a count that must be there; raises BadFile naming the field."""
        value = self.count(*names, most=most)
        if value is None:
            raise BadFile(wrong(f"{self.path}", required=f"a field {names[0]}", found="none", remedy=_AGAIN))
        return value

    def listed(self, name: str) -> tuple[str, ...]:
        """Return a list of words of any length, empty where it is absent. Raises BadFile for anything else."""
        value = self.get(name)
        if value is not None and (not isinstance(value, list) or not all(isinstance(each, str) for each in value)):
            raise self._wrong(name, "a list of words", value)
        return tuple(value or ())

    def words(self, name: str, length: int) -> tuple[str, ...] | None:
        """Return a list of one word a layer; None where it is absent. Raises BadFile for another length or type."""
        if self.get(name) is None:
            return None
        value = self.listed(name)
        if len(value) != length:
            raise self._wrong(name, f"{length} words, one a layer", f"{len(value)} of them")
        return value

    def counts(self, layers: int, *names: str) -> tuple[int, ...] | None:
        """Return a count for each layer, of a list or of one number for all; None where no name has a value."""
        value = self.get(*names)
        if not isinstance(value, list):
            single = self.count(*names)
            return None if single is None else (single,) * layers
        if len(value) != layers or not all(map(is_count, value)):
            raise self._wrong(self._named(names), f"{layers} whole numbers from 1, one a layer", value)
        return tuple(value)

    def part(self, name: str) -> Fields | None:
        """Return a nested object; None where there is none. Raises BadFile for what is no object."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, "an object", value)
        return None if value is None else Fields(value, self.path)

    def _named(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if self.values.get(name) is not None), names[0])

    def _wrong(self, name: str, required: str, found: object) -> BadFile:
        shown = found if isinstance(found, str) and " of them" in found else shortened(found)
        return BadFile(wrong(f"{self.path}, {name}", required=required, found=shown, remedy=_AGAIN))


def is_count(value: object, most: int | None = MOST) -> bool:
    """Return whether a JSON value is a whole number from one, and at most `most` where that is given."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return whole and (most is None or value <= most)  # type: ignore[operator]


def shortened(value: object) -> str:
    """Return a value from a file as an error quotes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read(folder: Path) -> Fields:
    """Return the fields of `folder`/config.json (or of that file). Raises BadFile when it cannot be read as such."""
    path = folder
    try:
        path = folder / "config.json" if folder.is_dir() else folder
        if (strange := no_file(path)) is not None:
            raise ValueError(strange)
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a pipe, or a path with a null byte
        found = getattr(error, "strerror", None) or str(error)
        raise BadFile(
            wrong(f"model {shortened(str(folder))}", required="a config.json", found=found, remedy=_AGAIN)
        ) from error
    if len(text) > MOST_BYTES:
        found = f"more than {MOST_BYTES // 1_000_000} MB"
        raise BadFile(wrong(f"{path}", required="a JSON object", found=found, remedy=_AGAIN))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        found = shorten(f"{type(error).__name__}: {error}", 120, placeholder=" ...")
        raise BadFile(wrong(f"{path}", required="a JSON object", found=found, remedy="correct the file")) from error
    if not isinstance(content, dict):
        raise BadFile(wrong(f"{path}", required="a JSON object", found=shortened(content), remedy=_AGAIN))
    return Fields(content, path)
