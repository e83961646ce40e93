"""Tenants: who holds memory and who holds the GPU on this device: containers, pipelines, servers, a desktop, by name.

Memory is resident set size: pages that several processes share count for each. Whoever has a GPU's node open is its
tenant; other users' processes can only be looked into by root, and how many could not is told.

Source: proc(5): status, cgroup, fd; names of programs from their projects' documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from probes import gpu_nodes
from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 0
SHOWN = 5
CONTAINER = re.compile(
    r"(?:docker|libpod|crio|cri-containerd|containerd)[-/:]([0-9a-f]{12})|/kubepods.*/([0-9a-f]{12})"
)
# Programs that hold a GPU or much memory for long: pattern of the name in /proc, what it is
KNOWN = (
    (r"deepstream.*", "DeepStream"),
    (r"tritonserver", "Triton Inference Server"),
    (r"trtllm-.*", "TensorRT-LLM"),
    (r"ollama.*", "Ollama"),
    (r"llama-server", "llama.cpp server"),
    (r"vllm.*|VLLM.*", "vLLM"),
    (r"gst-launch.*", "GStreamer"),
    (r"nvargus-daemon", "camera service (Argus)"),
    (r"Xorg|Xwayland|gnome-shell|gdm.*|kwin.*|weston|sway|mutter.*", "desktop"),
)
FIELD = re.compile(r"^(Name|VmRSS|VmSwap|PPid):\s*(.+?)(?: kB)?$", re.M)


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One process; bytes of memory, the first 12 digits of its container, and what the program is known as."""

    pid: int
    name: str
    resident_bytes: int
    swapped_bytes: int
    container: str = ""
    known_as: str = ""

    @property
    def text(self) -> str:
        """For people: "llama-server (llama.cpp server), process 12, 3120 MiB, container 4f…"."""
        known = f" ({self.known_as})" if self.known_as else ""
        inside = f", container {self.container}" if self.container else ""
        return f"{self.name}{known}, process {self.pid}, {self.resident_bytes >> 20} MiB{inside}"


def parse_status(text: str) -> tuple[str, int, int]:
    """(name, resident bytes, swapped bytes) of /proc/PID/status; a kernel thread has no memory."""
    fields = dict(FIELD.findall(text))
    sizes = [fields.get(key, "0") for key in ("VmRSS", "VmSwap")]
    resident, swapped = (int(s) << 10 if s.isascii() and s.isdigit() and len(s) < 16 else 0 for s in sizes)
    return fields.get("Name", "?"), resident, swapped


def container_of(text: str) -> str:
    """The short id of the container in a /proc/PID/cgroup; "" outside of one."""
    found = CONTAINER.search(text)
    return (found[1] or found[2]) if found else ""


def known_as(name: str) -> str:
    """What a program is known as, or ""."""
    return next((known for pattern, known in KNOWN if re.fullmatch(pattern, name)), "")


def read_tenants(host: Host) -> list[Tenant]:
    """Every process that has memory."""
    found = []
    for path in host.glob("/proc/[0-9]*/status"):
        text = host.text(path)
        if text is None:  # it has ended meanwhile
            continue
        name, resident, swapped = parse_status(text)
        if resident or swapped:
            folder = path.rpartition("/")[0]
            tenant = Tenant(
                pid=int(folder.rpartition("/")[2]),
                name=name,
                resident_bytes=resident,
                swapped_bytes=swapped,
                container=container_of(host.text(f"{folder}/cgroup") or ""),
                known_as=known_as(name),
            )
            found.append(tenant)
    return found


def held_nodes(host: Host, pid: int) -> list[str] | None:
    """The GPU nodes that a process has open; None when this user may not look."""
    if not host.readable(f"/proc/{pid}/fd"):
        return None
    targets = (host.link(path) for path in host.glob(f"/proc/{pid}/fd/*"))
    return sorted({target for target in targets if target and gpu_nodes.is_held(target)})


def check(host: Host) -> Finding:
    """List the largest holders of memory and the holders of the GPU.

    Returns: WORKS; UNKNOWN when /proc shows no process.
    """
    tenants = sorted(read_tenants(host), key=lambda t: -(t.resident_bytes + t.swapped_bytes))
    on_gpu, hidden = [], 0
    if gpu_nodes.there(host):
        for tenant in tenants:
            nodes = held_nodes(host, tenant.pid)
            hidden += nodes is None
            on_gpu += [tenant] if nodes else []
    facts: dict[str, Fact] = {
        "memory_tenants": [tenant.text for tenant in tenants[:SHOWN]],
        "gpu_tenants": [tenant.text for tenant in on_gpu[:SHOWN]],
        "gpu_tenants_not_looked_into": hidden,
        "containers": _containers(tenants),
        "known_tenants": sorted({tenant.known_as for tenant in tenants if tenant.known_as}),
    }
    if not tenants:
        reason = host.not_executed or "/proc shows no process"
        return Finding(subject="tenants", layer=LAYER, status=Status.UNKNOWN, reason=reason, facts=facts)
    return Finding(subject="tenants", layer=LAYER, status=Status.WORKS, facts=facts)


def _containers(tenants: Iterable[Tenant]) -> list[str | int | float]:
    """Each container with the memory of its processes together."""
    sums: dict[str, int] = {}
    for tenant in tenants:
        if tenant.container:
            sums[tenant.container] = sums.get(tenant.container, 0) + tenant.resident_bytes
    return [f"{name}: {size >> 20} MiB" for name, size in sorted(sums.items(), key=lambda item: -item[1])[:SHOWN]]
