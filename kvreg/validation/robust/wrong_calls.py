"""Wrong calls on a device: each is a typed error of one line before anything is launched, so no byte has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kvreg.bench.selections import select_from
from kvreg.core.errors import KvregError
from kvreg.core.modes import Mode
from kvreg.core.requests import Request
from kvreg.core.selections import Selection
from kvreg.runtime.attention import attend, write
from kvreg.runtime.cache import KVCache
from kvreg.runtime.pages import convert, copy_pages, dequantize
from kvreg.runtime.plan import plan
from kvreg.validation.robust.findings import judged
from kvreg.validation.robust.lineups import wait
from kvreg.validation.robust.wrong_call_table import HEAD, KV, PAGE, PAGES, WRONG, WRONG_VALUES, Q, Row, ints, rows
from kvreg.validation.unproven import Place, fitting, offered, place_of
from kvreg.validation.work import use

EVERY = (
    "causal", "non_causal", "per_sequence_causal", "window", "softcap", "sinks", "alibi", "prefix_ranges",
)  # fmt: skip


class Calls:
    """One right call of each kind; a wrong call is one of them with something replaced."""

    def __init__(self, place: Place, features: tuple[str, ...] = ("causal",)) -> None:
        self.place = place
        with self.there():
            self.cache = KVCache.allocate(self.select(features=features), PAGES, device=place.torch_device)
            self.cache.buffer.copy_(torch.arange(self.cache.buffer.numel()) % 251)
            self.out = torch.full((3, Q, HEAD), torch.nan, dtype=torch.bfloat16)

    def there(self) -> Any:
        """Make tensors on the place's device in a with statement."""
        return torch.device(self.place.torch_device)

    def select(
        self, mode: str = Mode.INT4_PER_TOKEN_HEAD, features: tuple[str, ...] = ("causal",), **changed: Any
    ) -> Selection:
        """Return a selection of the table's geometry."""
        geometry: dict[str, Any] = {"head_size": HEAD, "q_heads": Q, "kv_heads": KV, "page": PAGE} | changed
        device = self.place.resolution.device.key
        request = Request(device=device, mode=Mode(mode), dtype="bf16", features=features, **geometry)
        winners = {op: fit[0] for op, fit in fitting(request, self.place).items()}
        return select_from(winners, request, self.place.resolution)

    def write(self, **changed: Any) -> None:
        """Write three rows and a padding row."""
        call = {"k": rows(), "v": rows(), "slots": ints(0, 17, -1, 33, dtype=torch.int64), "cache": self.cache}
        call |= changed
        write(call["cache"], call["k"], call["v"], call["slots"])

    def featured(self, **changed: Any) -> None:
        """Attend with a cache whose selection has every feature."""
        cache = KVCache.allocate(self.select(features=EVERY), PAGES, device=self.place.torch_device)
        self.attend(cache=cache, plan=plan(cache, ints(0, 1, 2, 3), ints(33, 40, 0), max_context=40), **changed)

    def allocate(self, mode: str = "fp8_per_tensor", **changed: Any) -> None:
        """Allocate a cache."""
        KVCache.allocate(self.select(mode), PAGES, device=self.place.torch_device, **changed)

    def attend(self, **changed: Any) -> None:
        """Attend in three sequences, the last one empty."""
        call = {
            "q": rows(3, Q),
            "cache": self.cache,
            "page_table": ints(0, 1, 2, 3, 4, 5, 0, 0, 0).view(3, 3),
            "seq_lens": ints(33, 40, 0),
            "cu_q": ints(0, 1, 2, 3),
            "out": self.out,
        }
        if "plan" not in changed:
            call["plan"] = plan(self.cache, ints(0, 1, 2, 3), ints(33, 40, 0), max_context=40)
        attend(**(call | changed))

    def plan(self, **changed: Any) -> None:
        """Plan for two sequences."""
        call = {"cache": self.cache, "cu_q": ints(0, 1, 2), "seq_lens": ints(3, 4), "max_context": 8} | changed
        plan(**call)

    def copy(self, **changed: Any) -> None:
        """Copy two pages."""
        call = {"cache": self.cache, "src": ints(0, 1), "dst": ints(2, 3)} | changed
        copy_pages(call["cache"], call["src"], call["dst"])

    def dequantize(self, **changed: Any) -> None:
        """Read two slots back."""
        call = {"cache": self.cache, "slots": ints(0, 1)} | changed
        dequantize(call["cache"], call["slots"])

    def convert(self, **changed: Any) -> None:
        """Move the cache to the other layout."""
        call: dict[str, Any] = {"cache": self.cache, "layout": "inline.1"} | changed
        convert(call["cache"], call["layout"])


RIGHT = ("write", "attend", "featured", "allocate", "plan", "copy", "dequantize", "convert")
"""The calls that the table varies."""


def calls_for(place: Place) -> tuple[str, ...]:
    """Return those of RIGHT that can be made at a place: `allocate` is for fp8_per_tensor, the mode with scales."""
    return tuple(name for name in RIGHT if name != "allocate" or Mode.FP8_PER_TENSOR in offered(place))


def table_for(place: Place) -> Mapping[str, Row]:
    """Return the rows that a place can see."""
    made, seen = calls_for(place), WRONG if place.is_card else {**WRONG, **WRONG_VALUES}
    return {name: row for name, row in seen.items() if row[0] in made}


def every_row(place: str) -> dict[str, Any]:
    """Make every wrong call of the table, and the right ones; a task of a worker."""
    where = place_of(place)
    use(where.torch_device)
    table = table_for(where)
    failures = [text for name in table for text in wrong_call(Calls(where), table[name], name)]
    failures += [text for name in calls_for(where) for text in _refused(where, name)]
    return judged(f"{len(table)} wrong calls, {len(calls_for(where))} right ones", failures).to_json()


def wrong_call(calls: Calls, row: Row, name: str) -> Iterator[str]:
    """Make one wrong call and yield what is wrong about its end."""
    call, changed, error, words = row
    before = calls.cache.buffer.clone()
    message = None
    try:
        with calls.there():
            getattr(calls, call)(**changed())
    except KvregError as caught:
        message = str(caught)
        if type(caught) is not error:
            yield f"{name}: required {error.__name__}, found {type(caught).__name__}"
    except Exception as caught:
        yield f"{name}: required {error.__name__}, found {type(caught).__name__}: {str(caught).splitlines()[0]}"
        return
    if message is None:
        yield f"{name}: required {error.__name__}, found an accepted call"
        return
    place = calls.place
    due = words.replace("PLACE", str(calls.cache.device)).replace("KEY", place.resolution.device.key).split()
    missing = [word for word in due if word not in message]
    if missing or "\n" in message:
        yield f"{name}: required one line with {' '.join(missing)}, found {message!r}"
    wait(place)
    if not torch.equal(calls.cache.buffer, before) or not bool(calls.out.isnan().all()):
        yield f"{name}: required no byte to change, found some changed"


def _refused(place: Place, name: str) -> Iterator[str]:
    """Make one right call; a table of errors that refuses it too would show nothing."""
    calls = Calls(place)
    try:
        with calls.there():
            getattr(calls, name)()
        wait(place)
    except Exception as caught:
        yield f"a right call of {name}: required no error, found {type(caught).__name__}: {caught}"
