"""What a devices.yaml may say. pydantic is imported here and nowhere else in the core; readers load this lazily.

Types are strict: YAML reads `no` as a boolean and `1e3` as a text, and neither may pass for a fact.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Key = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
PciId = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{4}$")]
MigProfile = Annotated[str, StringConstraints(pattern=r"^[0-9]+g\.[0-9]+gb(\+[a-z.]+)?$")]
Count = Annotated[int, Field(gt=0)]
Size = Annotated[int | float, Field(gt=0)]
Fp8 = Literal["e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"]
SourceKeys = dict[str, list[str]]


class Entry(BaseModel):
    """Base: no key that is not declared, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Source(Entry):
    """Where facts come from."""

    how: Literal["measured", "read", "derived", "recalled"]
    what: str


class FloatPeaks(Entry):
    """Dense TFLOPS by operand type."""

    bf16: Size | None
    fp16: Size | None
    fp8: Size | None


class IntegerPeaks(Entry):
    """Dense TOPS by operand type."""

    int8: Size | None
    int4: Size | None


class Override(Entry):
    """Facts in which a sub-model, or one torch device of a package, differs from its card."""

    compute_units: Count | None = None
    eu_count: Count | None = None
    memory_gb: Size | None = None
    memory_bandwidth_gbs: Size | None = None
    l2_bytes: Count | None = None
    bf16: Size | None = None
    fp16: Size | None = None
    fp8: Size | None = None
    int8: Size | None = None
    int4: Size | None = None


class SubModel(Override):
    """A product of its own that shares its parent's die; it gets the key `<parent>-<name of the entry>`."""

    name: str
    aliases: list[str] = []
    typed_aliases: list[str] = []
    pci_ids: list[PciId] = []
    src: SourceKeys = {}
    notes: list[str] = []


class MigSlice(Entry):
    """What was seen of one MIG profile."""

    compute_units: Count | None = None
    memory_usable_gib: Size | None = None


class Card(Entry):
    """One card. Only its identity is required; a fact that is left out or null is unknown."""

    key: Key
    name: str
    platform: str
    aliases: list[str] = []
    typed_aliases: list[str] = []
    arch: str
    compute_capability: str | None = None
    triton_target: list[Any] | None = None
    compute_units: Count | None = None
    compute_unit_kind: str | None = None
    eu_count: Count | None = None
    warp_sizes: list[int] = []
    shared_per_block_default_bytes: Count | None = None
    shared_per_block_max_bytes: Count | None = None
    shared_per_cu_bytes: Count | None = None
    registers_per_cu: Count | None = None
    registers_per_thread_max: Count | None = None
    vgpr_file_kib: Count | None = None
    grf_per_thread: list[int] | None = None
    max_threads_per_block: Count | None = None
    max_threads_per_cu: Count | None = None
    max_warps_per_cu: Count | None = None
    max_blocks_per_cu: Count | None = None
    max_num_sub_groups: Count | None = None
    tensor_memory_per_cu_bytes: Count | None = None
    xcds: Count | None = None
    l2_bytes: Count | None = None
    mall_bytes: Count | None = None
    memory_gb: Size | None = None
    memory_bandwidth_gbs: Size | None = None
    dense_tflops: FloatPeaks | None = None
    dense_tops: IntegerPeaks | None = None
    dense_fp4_tflops: Size | None = None
    bf16_native: bool | None = None
    fp8_native: list[Fp8] = []
    fp8_triton: list[Fp8] = []
    int4_tensor: bool | None = None
    fp4_native: bool | None = None
    matrix_kind: str | None = None
    matrix_kind_hw: str | None = None
    dpas_exec_size: Count | None = None
    block_io_2d: bool | None = None
    ocloc_device: str | None = None
    pci_ids: list[PciId] = []
    mig_profiles: list[MigProfile] = []
    mig_slices: dict[MigProfile, MigSlice] = {}
    variants: dict[Key, SubModel] = {}
    per_device: Override | None = None
    src: SourceKeys = {}
    notes: list[str] = []


class Arch(Entry):
    """A target that kernels compile for without a listed card, or other words for one that has cards."""

    arch: str
    aliases: list[str] = []
    warp_sizes: list[int] = []
    shared_per_block_max_bytes: Count | None = None
    bf16_native: bool | None = None
    fp8_native: list[Fp8] = []
    fp8_triton: list[Fp8] = []
    src: SourceKeys = {}
    notes: list[str] = []


class DeviceFile(Entry):
    """One platform's devices.yaml."""

    schema_: Literal[1] = Field(alias="schema")
    platform: str
    notes: list[str] = []
    sources: dict[str, Source] = {}
    devices: list[Card]
    archs: list[Arch] = []


NESTED: dict[str, type[Entry]] = {
    "devices": Card,
    "archs": Arch,
    "sources": Source,
    "variants": SubModel,
    "per_device": Override,
    "mig_slices": MigSlice,
    "dense_tflops": FloatPeaks,
    "dense_tops": IntegerPeaks,
}
"""Which model the entries below a key belong to, to name the nearest valid key of a misspelt one."""


def valid_keys(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the keys that are valid where `location` (an error's path, its own key left out) points."""
    for part in reversed(location):
        if isinstance(part, str) and part in NESTED:
            return _names(NESTED[part])
    return _names(DeviceFile)


def _names(model: type[Entry]) -> tuple[str, ...]:
    return tuple(field.alias or name for name, field in model.model_fields.items())
