"""Which cards of a host a run's workers see, and which folders belong to a checkout."""

import pytest

from kvreg.core import registry, resolve
from kvreg.core.errors import UsageError
from kvreg.validation.machine import Machine, cards, in_checkout, machine_for
from kvreg.validation.work import probe


def on(key: str, place: str) -> Machine:
    device = resolve.resolve(key).device
    backends = tuple(each for each in registry.backends() if each.platform == device.platform)
    return Machine(device, backends, "device", place)


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("key", "name"), [("h200", "CUDA_VISIBLE_DEVICES"), ("mi300x", "HIP_VISIBLE_DEVICES")])
def test_each_card_of_several_alike_is_shown_to_a_worker_alone(key, name):
    assert cards(on(key, "cuda:0"), {"alike": 4}) == tuple({name: str(number)} for number in range(4))


def test_cards_that_are_hidden_from_this_process_stay_hidden_from_its_workers(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " GPU-8f1, 5,")

    assert cards(on("h200", "cuda:0"), {"alike": 2}) == (
        {"CUDA_VISIBLE_DEVICES": "GPU-8f1"},
        {"CUDA_VISIBLE_DEVICES": "5"},
    )


@pytest.mark.parametrize(
    ("key", "place", "alike"),
    [("h200", "cuda:0", 1), ("h200", "cuda:1", 4), ("b580", "xpu:0", 2), ("cpu", "cpu", 1)],
    ids=["alone or unlike", "another asked for", "no such variable", "no card"],
)
def test_a_card_that_is_alone_or_meant_alone_is_left_as_it_is_seen(key, place, alike):
    assert cards(on(key, place), {"alike": alike}) == ({},)


def test_a_list_of_visible_cards_that_does_not_fit_their_number_is_not_guessed_at(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")

    assert cards(on("h200", "cuda:0"), {"alike": 2}) == ({},)


def test_a_host_without_a_card_counts_one_place():
    assert cards(machine_for("cpu"), probe("cpu")) == ({},)


def test_a_platform_of_a_checkout_is_written_to(tmp_path):
    (tmp_path / "pyproject.toml").touch()

    assert in_checkout(tmp_path / "backends/mine/evidence") == tmp_path / "backends/mine/evidence"


@pytest.mark.parametrize("inside", ["env/lib/mine/evidence", "lib/site-packages/mine/evidence"])
def test_a_copy_that_is_installed_inside_of_a_checkout_is_not(tmp_path, inside):
    """As `python -m venv .venv` and `pip install .` make it."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "env").mkdir()
    (tmp_path / "env/pyvenv.cfg").touch()

    with pytest.raises(UsageError) as caught:
        in_checkout(tmp_path / inside)

    assert f"found an installed package at {(tmp_path / inside).parent}; pip install -e" in str(caught.value)
