"""Which of two entries stays when files are merged, and what a comparison shows."""

from __future__ import annotations

import pytest

from kvreg_tuning.differences import by_merit, fold, pairs

INSTALLED = "a" * 64


@pytest.fixture
def judge():
    return by_merit(
        lambda variant: INSTALLED if variant == "toy-int4-decode@1" else None,
        lambda entry: "has tile 0" if entry.config.get("tile") == 0 else None,
    )


RULES = [
    ("the one that can be launched", {"config": {"tile": 0}, "latency_us": 1.0}, {"source": "estimated"}),
    ("the one that can be launched", {"config": {"tile": 0}}, {"kernel_hash": "b" * 64}),
    ("of the kernel that is installed", {"kernel_hash": "b" * 64, "latency_us": 1.0}, {"source": "estimated"}),
    ("measured goes before estimated", {"source": "estimated", "latency_us": 1.0}, {}),
    ("the faster one", {"latency_us": 90.0, "date": "2026-12-01"}, {}),
    ("the faster one", {"latency_us": 70.0, "default_latency_us": 80.0}, {}),
    ("the faster one", {"latency_us": 90.0, "default_latency_us": None}, {}),
    ("the newer one", {"date": "2026-11-29T23:59:59Z", "config": {"tile": 1}}, {}),
]


@pytest.mark.parametrize("worse_comes_first", [True, False])
@pytest.mark.parametrize(("why", "worse", "better"), RULES)
def test_the_better_one_stays_whichever_comes_first(judge, entry, why, worse, better, worse_comes_first):
    worse, better = entry(**worse), entry(**better)

    change = judge(worse, better) if worse_comes_first else judge(better, worse)

    assert (change.entry, change.other, change.why) == (better, worse, why)
    assert change.fate == ("replaced" if worse_comes_first else "kept")


def test_where_no_rule_tells_them_apart_the_first_one_stays(judge, entry):
    first, second = entry(config={"tile": 1}), entry(config={"tile": 2})

    assert judge(first, second).entry is first
    assert judge(first, second).why == "the one that came first"
    assert judge(first, first).why == "equal in both"


def test_of_kernels_that_are_not_installed_the_figures_decide(judge, entry):
    old, new = entry(kernel_hash="b" * 64), entry(kernel_hash="c" * 64, latency_us=70.0)

    assert judge(old, new).entry is new


def test_files_fold_into_one_entry_for_each_key(judge, entry):
    files = [[entry(latency_us=90.0), entry(head_size=64)], [entry()], [entry(latency_us=95.0), entry(group=8)]]

    merged = fold(files, judge)

    assert [(each.head_size, each.group, each.latency_us) for each in merged] == [
        (96, 4, 80.0),
        (64, 4, 80.0),
        (96, 8, 80.0),
    ]


def test_equal_entries_are_no_difference(entry):
    first = [entry(), entry(head_size=64), entry(head_size=128)]
    second = [entry(latency_us=75.0), entry(head_size=64), entry(head_size=256)]

    found = pairs(first, second)

    assert [(pair.entry.head_size, pair.side, pair.differing) for pair in found] == [
        (96, "both", ("latency_us",)),
        (128, "first", ()),
        (256, "second", ()),
    ]
