"""Finding cards without torch: what drivers and tools say is parsed, what they do not say is unknown."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import kvreg_cuda.detection
import kvreg_rocm.detection
import kvreg_xpu.detection
from kvreg.core.backends import Detected
from kvreg.core.probing import output_of, visible


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi of the test's own, first on PATH."""
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    return path


def write_tool(path: Path, query: str, listing: str = "") -> None:
    path.write_text(f'#!/bin/sh\nif [ "$1" = -L ]; then cat <<X\n{listing}\nX\nelse cat <<X\n{query}\nX\nfi\n')
    path.chmod(0o755)


def test_each_line_of_nvidia_smi_is_a_card(tool: Path) -> None:
    write_tool(
        tool,
        "NVIDIA H200, 9.0, 0x233510DE, 143771, 570.86.15, Disabled\nNVIDIA L4, 8.9, 0x27B810DE, 23034, 570.86.15, Off",
    )

    first, second = kvreg_cuda.detection.cards()

    assert first == Detected("cuda", "NVIDIA H200", "sm_90", "0x2335", None, 143771 << 20, "570.86.15", 0)
    assert (second.name, second.arch, second.index) == ("NVIDIA L4", "sm_89", 1)


def test_what_the_driver_does_not_say_is_unknown(tool: Path) -> None:
    write_tool(tool, "NVIDIA GB10, 12.1, [N/A], [N/A], 580.1, [N/A]")

    (card,) = kvreg_cuda.detection.cards()

    assert (card.arch, card.pci_id, card.memory_bytes) == ("sm_121", None, None)


def test_mig_slices_stand_for_their_card(tool: Path) -> None:
    write_tool(
        tool,
        "NVIDIA H200, 9.0, 0x233510DE, 143771, 570.1, Enabled\nNVIDIA H200, 9.0, 0x233510DE, 143771, 570.1, Disabled",
        "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb     Device  0: (UUID: MIG-2)\n"
        "  MIG 3g.71gb     Device  1: (UUID: MIG-3)\nGPU 1: NVIDIA H200 (UUID: GPU-4)",
    )

    names = [card.name for card in kvreg_cuda.detection.cards()]

    assert names == ["NVIDIA H200 MIG 1g.18gb", "NVIDIA H200 MIG 3g.71gb", "NVIDIA H200"]


def test_cuda_visible_devices_chooses_and_orders(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(tool, "NVIDIA H200, 9.0, 0x233510DE, 1, 5, [N/A]\nNVIDIA L4, 8.9, 0x27B810DE, 1, 5, [N/A]")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")

    assert [(card.name, card.index) for card in kvreg_cuda.detection.cards()] == [("NVIDIA L4", 0), ("NVIDIA H200", 1)]


@pytest.mark.parametrize(("value", "kept"), [("", []), ("-1", []), ("1,9,0", [1]), ("0", [0]), ("GPU-abc", [0, 1])])
def test_a_list_of_visible_devices_ends_at_the_first_that_is_none(value: str, kept: list[int]) -> None:
    cards = [Detected("cuda", str(number), index=number) for number in range(2)]

    assert [int(card.name) for card in visible(cards, ("V",), {"V": value})] == kept


@pytest.mark.parametrize(
    "script",
    [
        "exit 9",
        "echo NVIDIA L4, 8.9, [N/A], [N/A], 5, [N/A]; exit 9",
        "echo No devices were found",
        "echo a, b",
        "printf '\\377\\376, x'",
    ],
)
def test_a_tool_that_fails_or_babbles_finds_no_card(tool: Path, script: str) -> None:
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)

    assert kvreg_cuda.detection.cards() == []


def test_a_missing_tool_finds_no_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert kvreg_cuda.detection.cards() == []


def test_a_hung_tool_and_its_children_are_killed_at_the_limit(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(mark)!r}).touch()"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    began = time.monotonic()

    assert output_of([sys.executable, "-c", parent], limit_s=1.0) is None

    assert time.monotonic() - began < 10
    time.sleep(2.5)
    assert not mark.exists()


def test_kfd_nodes_with_simds_are_cards(tmp_path: Path, tool: Path) -> None:
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    put(nodes / "0/properties", "cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n")
    for number, version in ((2, 90402), (10, 90010)):
        put(
            nodes / f"{number}/properties",
            f"simd_count 1216\nsimd_per_cu 4\nvendor_id 4098\ndevice_id {0x74A1}\n"
            f"gfx_target_version {version}\ndrm_render_minor {126 + number}\n",
        )
    put(nodes / "2/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 206141652992\n")
    put(tmp_path / "class/drm/renderD128/device/product_name", "AMD Instinct MI300X OAM\n")
    put(tmp_path / "module/amdgpu/version", "6.12.12\n")

    first, second = kvreg_rocm.detection.cards(tmp_path)

    assert first == Detected("rocm", "AMD Instinct MI300X OAM", "gfx942", "0x74a1", 304, 206141652992, "6.12.12", 0)
    assert (second.name, second.arch, second.memory_bytes) == ("AMD Radeon Graphics", "gfx90a", None)


@pytest.mark.parametrize(
    ("version", "arch"), [(90402, "gfx942"), (90010, "gfx90a"), (110501, "gfx1151"), (120001, "gfx1201"), (0, None)]
)
def test_kfd_s_version_number_names_the_arch(version: int, arch: str | None) -> None:
    assert kvreg_rocm.detection.gfx(version) == arch


def test_intel_cards_are_found_and_connectors_and_others_are_not(tmp_path: Path) -> None:
    drm = tmp_path / "class/drm"
    put(drm / "card0/device/vendor", "0x10de\n")
    put(drm / "card1/device/vendor", "0x8086\n")
    put(drm / "card1/device/device", "0xe223\n")
    put(drm / "card1-DP-1/device/vendor", "0x8086\n")

    (card,) = kvreg_xpu.detection.cards(tmp_path)

    assert (card.pci_id, card.name, card.index) == ("0xe223", "Intel(R) Graphics [0xe223]", 0)


def test_a_machine_without_drivers_has_no_card(tmp_path: Path) -> None:
    assert kvreg_rocm.detection.cards(tmp_path) == kvreg_xpu.detection.cards(tmp_path) == []
