"""NVML through ctypes: which processes the driver says use the GPU. Only ever loaded in a child process.

On Tegra before Thor the library answers NOT_SUPPORTED to nearly everything; before JetPack 6 there is none.

Source: nvml.h of CUDA 13: nvmlDeviceGetComputeRunningProcesses_v3 with nvmlProcessInfo_v2_t, return codes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import byref, c_uint, c_ulonglong, c_void_p

from probes.host import Host

NAME = "libnvidia-ml.so.1"
NOT_SUPPORTED, INSUFFICIENT_SIZE = 3, 7
PROCESSES = 256
KINDS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t; memory in bytes, all ones where the driver does not say."""

    _fields_ = (
        ("pid", c_uint),
        ("used_bytes", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class NvmlProcesses:
    """The processes on NVIDIA's GPUs, sampled."""

    source = "NVML processes"

    def __init__(self, host: Host) -> None:
        """Load and start NVML; that it is not there is remembered as the reason for silence."""
        self._silent = ""
        self._seen: dict[int, int | None] = {}
        self._in_container = host.in_container()
        self._devices: list[c_void_p] = []
        try:
            self._library = host.load_library(NAME, local=True)
            self._devices = list(self._list())
        except (OSError, AttributeError) as error:
            self._silent = str(error)

    def _list(self) -> Iterator[c_void_p]:
        code = self._library.nvmlInit_v2()
        count = c_uint()
        code = code or self._library.nvmlDeviceGetCount_v2(byref(count))
        if code:
            self._silent = f"NVML does not start (error {code})"
            return
        for index in range(min(count.value, 64)):
            handle = c_void_p()
            if not self._library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle)):
                yield handle

    def look(self) -> None:
        """Remember who is there."""
        for device in self._devices:
            for kind in KINDS:
                self._look(device, kind)

    def _look(self, device: c_void_p, kind: str) -> None:
        function = getattr(self._library, kind, None)
        if function is None:
            self._silent = self._silent or f"this driver's NVML has no {kind}"
            return
        count, rows = c_uint(PROCESSES), (ProcessInfo * PROCESSES)()
        code = function(device, byref(count), rows)
        if code == NOT_SUPPORTED:
            self._silent = self._silent or "NVML does not list processes on this GPU (nvgpu answers NOT_SUPPORTED)"
        elif code:
            self._silent = self._silent or f"{kind}: error {code}"
        else:
            for row in rows[: min(count.value, PROCESSES)]:
                known = row.used_bytes != 2**64 - 1
                self._seen[row.pid] = max(self._seen.get(row.pid) or 0, row.used_bytes) if known else None

    def tell(self, pid: int) -> tuple[bool, str]:
        """It speaks when the process was on the GPU."""
        if pid in self._seen:
            used = self._seen[pid]
            return True, f"process {pid} was on the GPU" + (f" with {used >> 20} MiB" if used else "")
        if self._silent:
            return False, self._silent
        if not self._devices:
            return False, "NVML lists no GPU"
        if self._in_container:
            return False, f"process {pid} is not listed: in a container NVML counts in the host's numbers"
        return False, f"process {pid} is not among the {len(self._seen)} that were listed"
