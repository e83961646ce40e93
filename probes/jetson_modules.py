"""The modules that Jetsons are made with: what the device tree calls them, what the data sheets say of them.

Source: identification order and module numbers in `jetson_modules.json`, with its sources.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from probes import devicetree
from probes.contract import Fact
from probes.devicetree import DeviceTree

GIB = 1 << 30


class Soc(msgspec.Struct, frozen=True, kw_only=True):
    """What the SoC decides, whatever L4T runs on it."""

    compute_capability: str
    gpu: str
    gpu_stack: str


class SuperMode(msgspec.Struct, frozen=True, kw_only=True):
    """What changes in Super mode; None where no source says."""

    gpu_max_mhz: float | None
    bandwidth_gb_per_s: float | None
    max_tops: str | None = None
    supported_l4t: tuple[str, ...] | None = None


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `jetson_modules.json`; None means not found in a source. Bandwidth in 10^9 bytes per second.

    Attributes:
        max_tops: "40 TOPS INT8 sparse", as the vendor words it; figures of different precisions don't compare.
        nvenc: what can be encoded at once, "1x4K60 / 3x4K30 (H.265)"; "none" where there is no encoder; so `nvdec`.
        supported_l4t: "36" for each release of L4T 36, "35.3.1+" for those of L4T 35 from 35.3.1 on.
    """

    name: str
    part: str
    match: tuple[str, ...]
    soc: str
    ram_gb: int | None = None
    cuda_cores: int | None = None
    sm_count: int | None = None
    gpu_max_mhz: float | None = None
    bandwidth_gb_per_s: float | None = None
    dla_count: int | None = None
    max_tops: str | None = None
    nvenc: str | None = None
    nvdec: str | None = None
    supported_l4t: tuple[str, ...] | None = None
    super_mode: SuperMode | None = msgspec.field(name="super", default=None)
    sources: tuple[str, ...] = ()


class ModuleTable(msgspec.Struct, frozen=True, kw_only=True):
    """`jetson_modules.json`."""

    socs: dict[str, Soc]
    modules: tuple[Module, ...]


def read_table() -> ModuleTable:
    """The bundled table of modules."""
    data = Path(__file__).with_name("jetson_modules.json").read_bytes()
    return msgspec.json.decode(data, type=ModuleTable)


def identify_module(tree: DeviceTree, memory_bytes: int | None, table: ModuleTable) -> Module | None:
    """The module that the device tree names, with Super mode and the memory variant worked in.

    All strings are looked at, since the first may be a code name (AGX Xavier says "galen" first). The longest match
    wins: an IGX Orin carries the number of a module that is also sold alone.

    Args:
        tree: the device tree.
        memory_bytes: MemTotal; tells apart modules that share a number. None leaves both names standing.
        table: the known modules.

    Returns: None when no string holds a number that is in the table.
    """
    for tokens in (tree.compatible, tree.board_ids):
        hits = [
            (key, token, row)
            for row in table.modules
            for key in row.match
            for token in tokens
            if devicetree.names_board(token, key)
        ]
        if hits:
            longest = max(len(key) for key, _, _ in hits)
            rows = list({row: None for key, _, row in hits if len(key) == longest})
            is_super = any(token.endswith("-super") for key, token, _ in hits if len(key) == longest)
            return _with_super(_by_memory(rows, memory_bytes), is_super)
    return None


def _by_memory(rows: list[Module], memory_bytes: int | None) -> Module:
    if len(rows) == 1:
        return rows[0]
    rows = sorted(rows, key=lambda row: row.ram_gb or 0)
    if memory_bytes is None:
        return msgspec.structs.replace(rows[0], name=" or ".join(row.name for row in rows), ram_gb=None)
    # MemTotal is 3-10 % below the nominal size, never above it
    return next((row for row in rows if (row.ram_gb or 0) * GIB >= memory_bytes), rows[-1])


def _with_super(module: Module, is_super: bool) -> Module:
    if not is_super:
        return module
    mode = module.super_mode or SuperMode(gpu_max_mhz=None, bandwidth_gb_per_s=module.bandwidth_gb_per_s)
    return msgspec.structs.replace(
        module,
        name=f"{module.name}, Super",
        gpu_max_mhz=mode.gpu_max_mhz,
        bandwidth_gb_per_s=mode.bandwidth_gb_per_s,
        max_tops=mode.max_tops,
        supported_l4t=mode.supported_l4t or module.supported_l4t,
    )


def data_sheet(module: Module | None) -> dict[str, Fact]:
    """The module's data sheet, for forecasts where nothing was measured yet."""
    if module is None:
        return {}
    bandwidth = module.bandwidth_gb_per_s
    return {
        "datasheet_memory_bandwidth_bytes_per_s": None if bandwidth is None else bandwidth * 1e9,
        "datasheet_cuda_cores": module.cuda_cores,
        "datasheet_sm_count": module.sm_count,
        "datasheet_gpu_max_hz": None if module.gpu_max_mhz is None else module.gpu_max_mhz * 1e6,
        "datasheet_max_tops": module.max_tops,
        "datasheet_dla_count": module.dla_count,
        "datasheet_nvenc": module.nvenc,
        "datasheet_nvdec": module.nvdec,
        "has_nvenc": _has(module.nvenc),
        "has_nvdec": _has(module.nvdec),
        "supported_l4t": None if module.supported_l4t is None else list(module.supported_l4t),
    }


def _has(engine: str | None) -> bool | None:
    return None if engine is None else engine != "none"
