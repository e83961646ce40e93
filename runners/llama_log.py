"""What llama.cpp's load log proves: which device each layer was assigned to, and which buffers lie where. Pure text.

The line `offloaded N/N layers to GPU` is not read: it is printed from what was asked for, even without any GPU.
Source: a whole log on a CPU (llama-cpp-python 0.3.36, ggml 0.25.3), single lines from lavapipe and CUDA; the README of
`tests/fixtures/llama_cpp/` tells which is which.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping

from probes import saxpy
from probes.contract import DeviceKind
from runners.contract import Placement, PlacementPart

TAIL_LINES = 40
LINE_CHARACTERS = 500
LAYER = re.compile(r"\blayer\s+(\d+) assigned to device ([^\s,]+)")
BUFFER = re.compile(r":\s+(\S+)\s+(model|KV|RS|compute|output) buffer size\s*=\s*([\d.]+) MiB")
DEVICE = re.compile(r"using device (\S+) \((.*?)\) \(.*?\) - (\d+) MiB free")
MISPLACED = re.compile(r"tensor '([^']+)'.* cannot be used with preferred buffer type (\S+), using (\S+) instead")
OUT_OF_MEMORY = re.compile(
    r"out of memory|failed to allocate|unable to allocate|insufficient memory|bad_alloc"
    r"|cannot allocate memory|ErrorOutOf(Device|Host)Memory|NvMapMem\w*Alloc",
    re.IGNORECASE,
)
ERROR = re.compile(r"\berror\b|\bfailed\b", re.IGNORECASE)
PREFIX = re.compile(r"^\w+: ")  # the function that writes the line
SPLITS = re.compile(r"\bsplits\s*= (\d+)")
UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture: '([^']*)'")
HOST_BUFFER = re.compile(r"CPU(_\w+)?|\w+_Host|BLAS|AMX")


class LoadLog:
    """Collects a log as it comes, in pieces of lines; keeps the proof and the last lines, nothing else."""

    def __init__(self) -> None:
        self.layers: dict[int, str] = {}
        self.buffers: Counter[tuple[str, str]] = Counter()
        self.devices: dict[str, str] = {}
        self.misplaced: dict[str, str] = {}
        self.unknown_architecture = ""
        self.memory_line = ""
        self.graph_splits: int | None = None
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._line = ""

    def feed(self, text: str, debug: bool = False) -> None:
        """Take more of the log: any number of lines, the last one perhaps unfinished.

        Args:
            text: as llama.cpp's log callback gives it.
            debug: of level DEBUG; read for proof, but too much for `tail`.
        """
        *lines, rest = (self._line + text).split("\n")
        self._line = rest[-LINE_CHARACTERS:]
        for line in lines:
            self._take(line)
            if not debug and len(line.strip()) > 1:
                self._tail.append(line.strip()[:LINE_CHARACTERS])

    def tail(self, lines: int = 3) -> str:
        """The last lines that are not of level DEBUG, as one."""
        return " | ".join(list(self._tail)[-lines:])

    def cause(self) -> str:
        """The first line that tells of an error, without the name of its function; or the last lines."""
        found = next((line for line in self._tail if ERROR.search(line)), "")
        return PREFIX.sub("", found) or self.tail()

    def _take(self, line: str) -> None:
        if found := LAYER.search(line):
            self.layers[int(found[1])] = found[2]
        elif found := BUFFER.search(line):
            size = int(float(found[3]) * 1024 * 1024)
            if found[2] == "compute":  # told again when it is made again; the others are told once per piece
                self.buffers[found[1], found[2]] = size
            else:
                self.buffers[found[1], found[2]] += size
        elif found := DEVICE.search(line):
            self.devices[found[1]] = found[2]
        elif (found := MISPLACED.search(line)) and not HOST_BUFFER.fullmatch(found[2]):
            self.misplaced[found[1]] = found[3]
        elif found := UNKNOWN_ARCHITECTURE.search(line):
            self.unknown_architecture = found[1]
        elif found := SPLITS.search(line):
            self.graph_splits = int(found[1])
        elif OUT_OF_MEMORY.search(line):
            self.memory_line = line.strip()


def device_of(buffer: str) -> str:
    """The device whose memory a buffer type lies in: "CPU_Mapped" and "CUDA_Host" are the host's."""
    return "CPU" if HOST_BUFFER.fullmatch(buffer) else re.sub(r"_(Split|REPACK|Private)$", "", buffer)


def device_kind(name: str, description: str) -> DeviceKind:
    """What a device of ggml is. lavapipe calls itself a GPU (type 1); only its description tells.

    Args:
        name: "CPU", "CUDA0", "Vulkan0".
        description: as ggml's registry or the load log gives it, "Orin", "llvmpipe (LLVM 15.0.6, 256 bits)".
    """
    return DeviceKind.CPU if HOST_BUFFER.fullmatch(name) else saxpy.kind_of(DeviceKind.GPU, description)


def placement(log: LoadLog, kinds: Mapping[str, DeviceKind]) -> Placement:
    """Where a model lies, from its load log; the output layer counts as a layer, as in llama.cpp's own counts.

    Args:
        log: the whole log of loading a model and making its context.
        kinds: device name -> kind; a device that is not in there goes by its description in the log.
    """
    layers = Counter(log.layers.values())
    sizes: Counter[str] = Counter()
    for (buffer, _), size in log.buffers.items():
        sizes[device_of(buffer)] += size
    parts = [
        PlacementPart(
            device=device,
            device_kind=kinds.get(device) or device_kind(device, log.devices.get(device, "")),
            layers=layers.get(device, 0),
            bytes=sizes.get(device),
        )
        for device in {**layers, **sizes}
    ]
    if not layers:
        return Placement()
    parts.sort(key=lambda part: (-(part.layers or 0), -(part.bytes or 0)))
    return Placement(parts=tuple(parts), source="llama.cpp load log: layer assignments and buffer sizes")


def fallback(log: LoadLog, placed: Placement, device: str) -> str:
    """What a strict run can't accept: why not everything is on the GPU `device`; "" when everything is."""
    on_gpu = [part for part in placed.parts if part.device == device and part.device_kind is DeviceKind.GPU]
    if not on_gpu or any(part.layers for part in placed.parts if part not in on_gpu):
        found = ", ".join(f"{p.layers} on {p.device} ({p.device_kind.value})" for p in placed.parts if p.layers)
        where = f"put these layers: {found}" if found else "does not tell where it put them"
        return f"all layers were to be on {device}, a GPU; llama.cpp {where}"
    if log.misplaced:
        tensor, buffer = next(iter(log.misplaced.items()))
        count = len(log.misplaced)
        return f"{device} can't hold {tensor} and {count - 1} more tensors; llama.cpp put it into {buffer}"
    return ""
