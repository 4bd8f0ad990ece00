"""One identity function: every text that may name a device, and every text that must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.core import device_files, registry, resolve
from kvreg.core.backends import Detected
from kvreg.core.devices import Device, Resolution
from kvreg.core.errors import DeviceUnavailable, UnknownDevice


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    return device_files.devices()


def find(text: str) -> Resolution:
    return resolve.resolve(text)


@pytest.mark.parametrize(
    ("text", "key", "rule"),
    [
        ("h200", "h200", "key"),
        ("H200", "h200", "key"),
        ("  h200 ", "h200", "key"),
        ("NVIDIA H200 SXM", "h200", "name"),
        ("NVIDIA H200", "h200", "alias"),
        ("nvidia  h200", "h200", "alias"),
        ("NVIDIA_H200", "h200", "file_name"),
        ("AMD_Instinct_MI300X_OAM", "mi300x", "file_name"),
        ("Intel(R)_Arc(TM)_Pro_B70_Graphics", "b70", "file_name"),
        ("Intel(R) Arc(TM) B580 Graphics", "b580", "alias"),
        ("Intel Arc B580 Graphics", "b580", "alias"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb", "alias"),
        ("a100", "a100-80gb", "typed_alias"),
        ("RTX 4090", "rtx4090", "key"),
        ("dgx spark", "gb10", "typed_alias"),
        ("0x74a1", "mi300x", "pci_id"),
        ("74a1", "mi300x", "pci_id"),
        ("1002:74A1", "mi300x", "pci_id"),
        ("0x74b5", "mi300x-vf", "pci_id"),
        ("10de:2335", "h200", "pci_id"),
        ("NVIDIA H200 NVL", "h200-nvl", "variant"),
        ("NVIDIA_H200_NVL", "h200-nvl", "variant"),
        ("NVIDIA H100 NVL", "h100-nvl", "variant"),
        ("MI300X VF", "mi300x-vf", "variant"),
        ("NVIDIA H20-3e", "h20-3e", "variant"),
        ("H20-3e", "h20-3e", "key"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie", "variant"),
        ("NVIDIA H200 MIG 1g.18gb", "h200/mig-1g.18gb", "mig"),
        ("NVIDIA_H200_MIG_1g.18gb", "h200/mig-1g.18gb", "mig"),
        ("h200/mig-1g.18gb", "h200/mig-1g.18gb", "mig"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "h100/mig-1g.10gb+me", "mig"),
        ("sm_90", "arch:sm_90", "arch"),
        ("sm90", "arch:sm_90", "arch"),
        ("SM_90a", "arch:sm_90", "arch"),
        ("arch:sm_90", "arch:sm_90", "arch"),
        ("gfx942", "arch:gfx942", "arch"),
        ("gfx942:sramecc+:xnack-", "arch:gfx942", "arch"),
        ("gfx90a", "arch:gfx90a", "arch"),
        ("ptl-h", "arch:ptl_h", "arch"),
        ("cpu", "cpu", "key"),
    ],
)
def test_a_text_leads_to_its_device_by_the_stated_rule(text: str, key: str, rule: str) -> None:
    found = find(text)

    assert (found.device.key, found.matched_by) == (key, rule)


@pytest.mark.parametrize(("text", "card"), [("bmg", "b580"), ("gfx1151", "strix-halo"), ("pvc", "max1550")])
def test_an_arch_word_wins_over_the_same_word_as_a_typed_alias(text: str, card: str) -> None:
    assert text in find(card).device.typed_aliases

    assert find(text).device.key == f"arch:{text}"


def test_every_key_name_and_alias_leads_to_its_own_device(devices: tuple[Device, ...]) -> None:
    archs = {device.arch for device in devices}
    for device in devices:
        words = [device.key] if device.is_arch else [device.key, device.name, *device.aliases, *device.pci_ids]
        words += [alias for alias in device.typed_aliases if alias not in archs]
        for word in words:
            assert find(word).device == device, word
            assert find(word.replace(" ", "_").upper() if "(" not in word else word).device == device, word


@given(st.data())
def test_a_name_is_found_in_every_case_and_spacing(data: st.DataObject) -> None:
    cards = [device for device in device_files.devices() if not device.is_arch]
    device = data.draw(st.sampled_from(cards))
    name = data.draw(st.sampled_from([device.name, *device.aliases]))
    spacing = data.draw(st.sampled_from([" ", "  ", "_", " _"]))
    changed = spacing.join(data.draw(st.sampled_from([word, word.upper(), word.lower()])) for word in name.split())

    assert find(changed).device == device


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("rtx4090 d", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", "rtx4090"),
        ("NVIDIA A10G", "a10"),
        ("NVIDIA GB300", "b300"),
        ("h2000", "h200"),
        ("mi300", "mi300x"),
    ],
)
def test_a_near_miss_is_no_match_but_a_candidate(text: str, near: str) -> None:
    with pytest.raises(UnknownDevice, match="did you mean") as caught:
        find(text)

    assert near in caught.value.candidates
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    "text", ["sm_99", "sm_91", "gfx9999", "gfx942:foo+", "sm_90:xnack+", "arch:zz", "0x9999", "10de:74a1"]
)
def test_ids_and_archs_that_are_one_digit_off_give_no_candidates(text: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        find(text)

    assert caught.value.candidates == ()


def test_an_unknown_arch_is_answered_with_the_known_ones_of_its_vendor() -> None:
    with pytest.raises(UnknownDevice, match="name; known: gfx90a, gfx942, gfx950, gfx1100"):
        find("gfx9999")


def test_the_driver_s_name_for_any_amd_card_is_no_device() -> None:
    with pytest.raises(UnknownDevice):
        find("AMD Radeon Graphics")


@pytest.mark.parametrize("text", ["", "   ", "\n", "h200\nh100", "MIG 1g.18gb", "h200/mig-", "/mig-1g.18gb"])
def test_what_is_no_name_at_all_is_unknown_on_one_line(text: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        find(text)

    assert "\n" not in caught.value.message


def test_a_mig_slice_has_the_card_s_limits_and_its_own_units() -> None:
    card, part = find("h200").device, find("NVIDIA H200 MIG 1g.18gb").device

    assert (part.parent, part.compute_units, part.memory_gb) == ("h200", 16, 18)
    assert part.shared_per_block_max_bytes == card.shared_per_block_max_bytes == 232448
    assert part.memory_bandwidth_gbs is None
    assert "dense_tflops" not in part.facts


def test_a_mig_slice_whose_units_nobody_stated_has_none() -> None:
    assert find("NVIDIA H200 MIG 3g.71gb").device.compute_units is None


def test_a_mig_profile_that_the_card_lacks_gives_its_profiles_as_candidates() -> None:
    with pytest.raises(UnknownDevice, match=r"found 1g\.10gb") as caught:
        find("NVIDIA H200 MIG 1g.10gb")

    assert "h200/mig-1g.18gb" in caught.value.candidates


def test_a_card_without_mig_has_no_slices() -> None:
    with pytest.raises(UnknownDevice, match="rtx4090, which has none"):
        find("rtx4090 MIG 1g.5gb")


def test_a_card_whose_profiles_are_unknown_takes_any_and_says_so() -> None:
    found = find("NVIDIA H20 MIG 1g.12gb")

    assert found.device.key == "h20/mig-1g.12gb"
    assert any("not in the device files" in note for note in found.notes)


def test_a_sub_model_inherits_what_it_does_not_state() -> None:
    card, sub = find("h100").device, find("NVIDIA H100 NVL").device

    assert sub.parent == "h100"
    assert (sub.memory_gb, sub.memory_bandwidth_gbs, sub.compute_units) == (94, 3938, None)
    assert sub.facts["dense_tflops"] == {"bf16": 835, "fp16": None, "fp8": 1671}
    assert sub.shared_per_block_max_bytes == card.shared_per_block_max_bytes
    assert (sub.arch, sub.fp8_triton) == (card.arch, card.fp8_triton)


def test_an_arch_device_knows_what_its_cards_share_and_no_units() -> None:
    arch = find("sm_90").device

    assert arch.compute_units is None
    assert arch.memory_gb is None
    assert arch.shared_per_block_max_bytes == 232448
    assert arch.fp8_triton == ("e4m3fn", "e5m2")
    assert arch.capability == (9, 0)


CARD = Detected(platform="cuda", name="NVIDIA H200", arch="sm_90", pci_id="0x2335")


def served(card: Detected) -> Resolution:
    found = resolve.resolve_card(card, device_files.devices())
    assert found is not None
    return found


def test_a_known_card_is_served_by_its_name() -> None:
    assert (served(CARD).device.key, served(CARD).matched_by, served(CARD).notes) == ("h200", "alias", ())


def test_an_unknown_card_of_a_known_arch_is_served_from_it_with_a_note() -> None:
    found = served(Detected(platform="cuda", name="NVIDIA A10G", arch="sm_86", compute_units=80))

    assert (found.device.key, found.device.name, found.device.compute_units) == ("arch:sm_86", "NVIDIA A10G", 80)
    assert "NVIDIA A10G is not in the device files" in found.notes[0]


def test_the_driver_s_arch_goes_before_the_name() -> None:
    found = served(Detected(platform="cuda", name="NVIDIA H200", arch="sm_100"))

    assert found.device.key == "arch:sm_100"
    assert "architecture differs" in found.notes[0]


def test_a_virtual_function_is_known_by_its_id_behind_its_card_s_name() -> None:
    found = served(
        Detected(platform="rocm", name="AMD Instinct MI300X", arch="gfx942", pci_id="0x74b5", compute_units=304)
    )

    assert (found.device.key, found.device.compute_units) == ("mi300x-vf", 304)


def test_a_card_without_a_product_name_is_known_by_its_id() -> None:
    found = served(Detected(platform="rocm", name="AMD Radeon Graphics", arch="gfx942", pci_id="0x74a2"))

    assert (found.device.key, found.matched_by) == ("mi308x", "pci_id")


def test_a_partition_is_served_with_the_units_that_it_shows() -> None:
    found = served(Detected(platform="rocm", name="AMD Instinct MI300X", arch="gfx942", compute_units=38))

    assert found.device.compute_units == 38
    assert "38 compute units, mi300x has 304" in found.notes[0]


def test_a_card_of_no_known_name_and_arch_is_served_by_nothing() -> None:
    assert (
        resolve.resolve_card(Detected(platform="xpu", name="Intel(R) Graphics [0x4680]"), device_files.devices())
        is None
    )


def test_a_mig_slice_of_an_unknown_profile_is_served_from_the_arch() -> None:
    assert served(Detected(platform="cuda", name="NVIDIA H200 MIG 1g.99gb", arch="sm_90")).device.key == "arch:sm_90"


def test_the_asked_device_goes_before_detection() -> None:
    assert resolve.default_device("NVIDIA_H200").device.key == "h200"


def test_a_wrong_kvreg_device_is_named_as_such() -> None:
    with pytest.raises(UnknownDevice, match=r"^KVREG_DEVICE: device 'h2000'") as caught:
        resolve.default_device("h2000")

    assert "h200" in caught.value.candidates


def test_without_a_card_the_error_names_both_ways_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    monkeypatch.delenv("KVREG_DEVICE", raising=False)
    if registry.detect():
        pytest.skip("this machine has a card that no variable hides")

    with pytest.raises(DeviceUnavailable, match=r"--device or KVREG_DEVICE") as caught:
        resolve.default_device()

    assert caught.value.exit_code == 6
