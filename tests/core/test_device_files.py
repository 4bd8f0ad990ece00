"""devices.yaml: complete, with sources, and read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvreg.core import device_files, registry
from kvreg.core.devices import Device
from kvreg.core.errors import BadFile

CARDS = {
    "cuda": "t4 v100 rtx3060ti rtx3090 a10 a100-40gb a100-80gb l4 l40s rtx4090 rtx5090 rtx-pro-6000 h100-pcie h100 h20"
    " h200 gh200 b200 gb200 b300 gb10 thor",
    "rocm": "mi210 mi250x mi300a mi300x mi308x mi325x mi350x mi355x rx7900xtx w7900 rx9070xt r9700 strix-halo",
    "xpu": "max1550 max1100 a770 b580 b50 b60 b65 b70 lnl-140v ptl-b390",
    "cpu": "cpu",
}
MINIMAL = """\
schema: 1
platform: madeup
sources:
  page: {how: read, what: a page}
devices:
- {key: one, name: One, platform: madeup, arch: m1, memory_gb: 8, src: {memory: [page]}}
"""


def built_in() -> list[Device]:
    return [device for backend in registry.backends() for device in backend.devices() if backend.name in CARDS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "devices.yaml"


def refused(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile) as caught:
        device_files.read(file)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith(str(file))
    return caught.value.message


def test_every_platform_has_all_of_its_cards() -> None:
    found = {
        platform: [d.key for d in built_in() if d.platform == platform and not d.is_arch and d.parent is None]
        for platform in CARDS
    }

    assert found == {platform: keys.split() for platform, keys in CARDS.items()}
    assert sum(map(len, found.values())) == 46


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("t4", "bf16_native", False),
        ("t4", "shared_per_block_max_bytes", 65536),
        ("rtx3090", "fp8_triton", ("e5m2",)),
        ("h200", "l2_bytes", None),
        ("h200", "compute_units", 132),
        ("b300", "compute_units", None),
        ("mi300x", "fp8_native", ("e4m3fnuz", "e5m2fnuz")),
        ("mi355x", "shared_per_block_max_bytes", 163840),
        ("ptl-b390", "shared_per_block_max_bytes", None),
        ("max1550", "compute_units", 64),
        ("mi250x", "compute_units", 110),
        ("v100-pcie-16gb", "memory_gb", 16),
    ],
)
def test_facts_are_as_the_sources_say(key: str, field: str, value: object) -> None:
    (device,) = [device for device in built_in() if device.key == key]

    assert getattr(device, field) == value


def test_a_package_of_two_dies_keeps_the_whole_card_s_figures_apart() -> None:
    (device,) = [device for device in built_in() if device.key == "mi250x"]

    assert device.facts["package"]["compute_units"] == 220
    assert device.facts["dense_tflops"] == {"bf16": 191.5, "fp16": None, "fp8": None}


def test_no_two_devices_share_a_name_or_id() -> None:
    owner: dict[str, str] = {}
    for device in built_in():
        for word in {device.name, *device.aliases, *device.typed_aliases, *device.pci_ids}:
            if not device.is_arch:
                assert owner.setdefault(word.lower(), device.key) == device.key, word


def test_every_stated_source_has_a_text_and_every_file_uses_each_of_its_sources() -> None:
    for backend in registry.backends():
        if backend.name not in CARDS:
            continue
        used = {
            source["key"]
            for device in backend.devices()
            for group in device.sources.values()
            for source in group
            if source["how"] in ("measured", "read", "derived", "recalled") and source["what"]
        }
        stated = set(device_files._parsed(backend.device_file).sources)
        assert used == stated, backend.name


def test_a_device_survives_json() -> None:
    for device in built_in():
        assert Device.from_json(json.loads(json.dumps(device.to_json()))) == device


def test_a_minimal_file_gives_its_card_and_its_arch(file: Path) -> None:
    file.write_text(MINIMAL, encoding="utf-8")

    card, arch = device_files.read(file)

    assert (card.key, card.memory_gb, card.compute_units) == ("one", 8, None)
    assert card.sources == {"memory": [{"key": "page", "how": "read", "what": "a page"}]}
    assert arch.key == "arch:m1"


def test_a_misspelt_key_is_named_with_file_entry_and_nearest_key(file: Path) -> None:
    message = refused(file, MINIMAL.replace("memory_gb", "memroy_gb"))

    assert message == f"{file}: one: memroy_gb: required a known key, found none of that name; did you mean memory_gb?"


def test_a_misspelt_key_of_a_sub_model_is_named_with_its_place(file: Path) -> None:
    text = MINIMAL.replace("memory_gb: 8", "variants: {nvl: {name: N, memory_bandwith_gbs: 3}}")

    assert refused(file, text).endswith(
        "one: variants.nvl: memory_bandwith_gbs: required a known key, found none of that name; "
        "did you mean memory_bandwidth_gbs?"
    )


def test_a_misspelt_key_of_the_file_is_named(file: Path) -> None:
    message = refused(file, MINIMAL.replace("devices:", "devics:"))

    assert message == f"{file}: devics: required a known key, found none of that name; did you mean devices?"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("memory_gb: 8", "memory_gb: no", "memory_gb"),  # YAML reads a boolean
        ("memory_gb: 8", "memory_gb: 1e3", "memory_gb"),  # YAML reads a text
        ("memory_gb: 8", "memory_gb: -8", "memory_gb"),
        ("memory_gb: 8", "bf16_native: 1", "bf16_native"),
        ("memory_gb: 8", "pci_ids: ['74a1']", "pci_ids"),
        ("memory_gb: 8", "fp8_triton: [e4m3]", "fp8_triton"),
        ("key: one", "key: One two", "key"),
        ("schema: 1", "schema: 2", "schema"),
        ("platform: madeup, ", "platform: cuda, ", "required madeup, found cuda"),
        ("memory: [page]", "memory: [pgae]", "did you mean page?"),
        ("memory_gb: 8", "memory_gb: 8, memory_gb: 9", "appears twice"),
        ("- {key", "- {{key", "required valid YAML"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(file: Path, before: str, after: str, says: str) -> None:
    assert before in MINIMAL

    assert says in (message := refused(file, MINIMAL.replace(before, after)))
    assert ": required " in message
    assert "nput should" not in message


@pytest.mark.parametrize("text", ["", "[]", "3", "schema: 1"])
def test_what_is_no_device_file_is_refused(file: Path, text: str) -> None:
    refused(file, text)


def test_a_key_that_two_entries_have_is_refused(file: Path) -> None:
    twice = MINIMAL + "- {key: one, name: Other, platform: madeup, arch: m1}\n"

    assert "one: required a key of its own, found it twice" in refused(file, twice)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        device_files.read(file)
