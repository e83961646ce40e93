"""nvidia-smi's CSV as numbers. On Tegra and other unified parts most cells hold no number; those become None, never 0.

A row is never dropped for a cell that can't be read: "[N/A]", "N/A", "Not Supported" and "None" all stand for unknown.

Source: nvidia-smi 540 (L4T 36), 580, 595 and desktop drivers, `--query-gpu=... --format=csv`.
"""

from __future__ import annotations

import csv
import re

import msgspec

from probes.host import Host

MIB = 1 << 20
FIELDS = "name,memory.total,memory.used,memory.free,temperature.gpu,utilization.gpu,compute_cap,addressing_mode"
UNIFIED_NAMES = re.compile(r"\(nvgpu\)|\b(Thor|GB10|N1X?)\b")
# Grace Hopper and Grace Blackwell: addressing mode ATS, and memory of their own all the same
OWN_MEMORY_NAMES = re.compile(r"\bG[HB]\d00\b")


class GpuRow(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as nvidia-smi tells it; None for whatever it does not.

    Attributes:
        unified: CPU and GPU share one memory (a part known for it, or addressing mode ATS). `memory_total_bytes` is
            then the driver's own number, which may be far below the real pool: plan with MemTotal.
    """

    name: str
    unified: bool
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    clock_max_hz: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    compute_capability: str | None = None


def parse_number(cell: str) -> float | None:
    """The number a cell begins with ("24576 MiB", "12 %", "45"); None for text."""
    match = re.match(r"\s*(-?\d+(?:\.\d+)?)(?:\s|$)", cell)
    return float(match[1]) if match else None


def parse_gpus(text: str) -> tuple[GpuRow, ...]:
    """Rows of `nvidia-smi --query-gpu=... --format=csv` with its heading; () when the text is no such table."""
    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    except csv.Error:  # a field of more than 128 KiB; a NUL byte before Python 3.11
        return ()
    if not rows or not {"name", "gpu_name"} & set(rows[0]):
        return ()
    heads = [head.partition(" [")[0] for head in rows[0]]
    return tuple(_parse_row(dict(zip(heads, row, strict=False))) for row in rows[1:])


def _parse_row(cells: dict[str, str]) -> GpuRow:
    def number(key: str) -> float | None:
        return parse_number(cells.get(key, ""))

    def size_bytes(key: str) -> int | None:
        value = number(key)
        return None if value is None or not number("memory.total") else int(value) * MIB  # a total of 0 is none

    name = cells.get("name") or cells.get("gpu_name") or ""
    capability, clock_mhz = cells.get("compute_cap", ""), number("clocks.max.sm")
    by_mode = cells.get("addressing_mode") == "ATS" and OWN_MEMORY_NAMES.search(name) is None
    return GpuRow(
        name=name,
        unified=by_mode or UNIFIED_NAMES.search(name) is not None,
        memory_total_bytes=size_bytes("memory.total"),
        memory_used_bytes=size_bytes("memory.used"),
        memory_free_bytes=size_bytes("memory.free"),
        clock_max_hz=None if clock_mhz is None else clock_mhz * 1e6,
        temperature_c=number("temperature.gpu"),
        utilization_percent=number("utilization.gpu"),
        compute_capability=capability if parse_number(capability) is not None else None,
    )


def read_gpus(host: Host) -> tuple[GpuRow, ...]:
    """Ask nvidia-smi; () when it is not there or fails. Older ones know no addressing_mode and are asked without it."""
    for fields in (FIELDS, FIELDS.rpartition(",")[0]):
        answer = host.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv"], timeout_s=10.0)
        if answer.returncode == 0:
            return parse_gpus(answer.stdout)
    return ()
