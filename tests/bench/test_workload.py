"""The workload `bench`: what is tuned for it is what select asks for at the shapes of `kvreg bench`."""

from __future__ import annotations

import pytest

from kvreg.bench.shapes import DECODE, WRITE
from kvreg.bench.subjects import request_of
from kvreg.bench.workload import shapes_to_tune
from kvreg.core import resolve
from kvreg.core.buckets import Bucket, bucket
from kvreg.core.errors import UsageError
from kvreg.core.launchable import Launchable
from kvreg.core.modes import Mode
from kvreg.core.tuned import Entry, Shelf, choose
from kvreg_tuning import planning
from kvreg_tuning.spaces import Space
from kvreg_tuning.subjects import offered

NAMES = ("cuda-int4-decode@1", "cuda-int4-write@1")


def test_every_shape_is_tuned_in_its_bucket_with_its_heads() -> None:
    found = {
        (op, shape.head_size, shape.q_heads, shape.kv_heads, each)
        for shape in shapes_to_tune()
        for op, buckets in shape.workload.buckets.items()
        for each in buckets
    }

    requests = [(each, request_of(each, "h200", Mode.INT4_PER_TOKEN_HEAD)) for each in (*DECODE, *WRITE)]
    assert found == {
        (of.op, of.head_size, of.q_heads, of.kv_heads, bucket(of.op, asked.batch, asked.context))
        for of, asked in requests
    }
    assert {shape.head_size for shape in shapes_to_tune((96, 192))} == {96, 192}


def test_what_is_tuned_serves_each_of_its_shapes() -> None:
    device = resolve.resolve("h200").device
    spaces = planning.spaces_of(device, shapes_to_tune(), names=NAMES)
    hashes = {space.subject.variant: space.kernel_hash for space in spaces}
    shelf = Shelf(
        "h200.yaml", "h200", False, tuple(entry_of(space, each) for space in spaces for each in space.buckets)
    )

    for shape in (*DECODE, *WRITE):
        (name,) = [name for name in NAMES if name.partition("@")[0].endswith(shape.op)]
        request = request_of(shape, "h200", Mode.INT4_PER_TOKEN_HEAD)

        launched = Launchable(*offered("cuda")[name], device, request)
        chosen = choose(launched, hashes[name], [shelf], {})

        assert (chosen.source, chosen.notes) == ("tuned", ()), shape.name


def entry_of(space: Space, of: Bucket) -> Entry:
    """Return the entry of a winner, the last config of its space."""
    names = ("variant", "op", "mode", "head_size", "group", "page", "dtype", "layout", "features")
    fields = {name: getattr(space.subject, name) for name in names}
    return Entry(
        **fields, bucket=of, config=space.candidates.configs[-1], kernel_hash=space.kernel_hash, source="measured"
    )


def test_a_head_size_that_no_shape_of_it_has_is_named_beside_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"one of 64, .* with workload bench, found 100; take one of them"):
        shapes_to_tune([100])
