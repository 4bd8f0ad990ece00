"""Numbers of numpy, or of any type with `__index__`, count as ints at every door; what is kept is a plain int."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import kvreg
from kvreg.core.errors import CallError, UsageError, WrongCache
from kvreg.core.layouts import Plane
from kvreg.runtime.attention import attend
from kvreg.runtime.cache import KVCache
from kvreg.runtime.plan import plan


class Index:
    """A whole number of a library that nobody has heard of."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


COUNTS = (int, np.int64, np.uint8, np.array, Index)
NO_COUNTS = (True, np.True_, np.float64(32), 32.0, "32", np.array([32, 48]), None)
CU_Q, SEQ_LENS = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)


@pytest.mark.parametrize("count", COUNTS, ids=lambda kind: kind.__name__)
def test_whole_numbers_of_any_type_are_taken_by_every_call(count, select):
    asked = {"q_heads": 8, "kv_heads": 2, "page": 16, "batch": 4, "context": 64}
    request = kvreg.select("cpu", "none", count(64), **{name: count(value) for name, value in asked.items()}).request
    assert request == kvreg.select("cpu", "none", 64, **asked).request
    assert json.dumps(asdict(request))

    selection = select(features=("causal", "window"))
    plain = KVCache.allocate(selection, 3)
    planes = plain.geometry.strides
    k = Plane(count(planes.k.offset), planes.k.page, count(planes.k.slot), planes.k.head)
    cache = KVCache.from_buffer(selection, plain.buffer, replace(planes, k=k), pages=count(3))
    assert cache.spec == plain.spec == KVCache.allocate(selection, count(3)).spec

    made = plan(cache, CU_Q, SEQ_LENS, max_context=count(32), total_context=count(5))
    assert made.max_context == 32
    assert type(made.max_context) is int

    q, table = torch.ones(1, 8, 96, dtype=torch.bfloat16), torch.tensor([[0, 1]], dtype=torch.int32)
    windowed = [attend(q, cache, table, SEQ_LENS, CU_Q, made, window=width) for width in (4, count(4))]
    assert torch.equal(*windowed)


@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_what_is_no_whole_number_is_refused_by_every_call(value, select):
    selection = select(features=("causal", "window"))
    cache = KVCache.allocate(selection, 2)
    made = plan(cache, CU_Q, SEQ_LENS, max_context=32)
    call = (torch.ones(1, 8, 96, dtype=torch.bfloat16), cache, torch.zeros(1, 2, dtype=torch.int32), SEQ_LENS, CU_Q)
    refused = [
        (CallError, lambda: KVCache.allocate(selection, value)),
        (CallError, lambda: plan(cache, CU_Q, SEQ_LENS, max_context=value)),
        (UsageError, lambda: kvreg.select("cpu", "none", value)),
        (
            WrongCache,
            lambda: KVCache.from_buffer(selection, cache.buffer, replace(cache.geometry.strides, page_bytes=value)),
        ),
    ]
    if value is not None:  # which these take as none given
        refused += [
            (CallError, lambda: attend(*call, made, window=value)),
            (CallError, lambda: plan(cache, CU_Q, SEQ_LENS, max_context=32, total_context=value)),
        ]
    for error, wrong_call in refused:
        with pytest.raises(error):
            wrong_call()


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64], ids=lambda kind: kind.__name__)
def test_real_numbers_of_numpy_scale_and_cap(number, select):
    cache = KVCache.allocate(select(features=("causal", "softcap")), 2)
    made = plan(cache, CU_Q, SEQ_LENS, max_context=32)
    q, table = torch.ones(1, 8, 96, dtype=torch.bfloat16), torch.zeros(1, 2, dtype=torch.int32)

    outs = [attend(q, cache, table, SEQ_LENS, CU_Q, made, scale=of(2), softcap=of(3)) for of in (float, number)]

    assert torch.equal(*outs)


def test_a_scale_beyond_every_float_is_refused(select):
    cache = KVCache.allocate(select(), 2)
    made = plan(cache, CU_Q, SEQ_LENS, max_context=32)
    q, table = torch.ones(1, 8, 96, dtype=torch.bfloat16), torch.zeros(1, 2, dtype=torch.int32)

    with pytest.raises(CallError, match="scale"):
        attend(q, cache, table, SEQ_LENS, CU_Q, made, scale=10**400)
