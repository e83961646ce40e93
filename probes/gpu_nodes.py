"""The device nodes of GPUs by their names in /dev: the one place that knows them.

Only reading is ever tried: /dev/nvmap is 0440 on some L4T releases and works so.

Source: nodes, owners and modes on L4T 32 to 39; of NVIDIA's driver for cards; Linux's DRM and KFD; WSL's dxg.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from probes.host import Host

NVMAP = "/dev/nvmap"
IGPU = "/dev/nvgpu/igpu0"
CONTROL_GPU = "/dev/nvhost-ctrl-gpu"
CARD_CONTROL = "/dev/nvidiactl"
CARD_NUMBERED = "/dev/nvidia[0-9]*"
RENDER = "/dev/dri/renderD*"
NVGPU = ("/dev/nvgpu", CONTROL_GPU)  # each of them is made by the driver nvgpu alone
TEGRA = (
    NVMAP,
    "/dev/nvgpu/igpu*/ctrl",
    "/dev/nvgpu/igpu*/channel",
    "/dev/nvgpu/igpu*/as",
    "/dev/nvhost-ctrl",
    CONTROL_GPU,
    "/dev/nvhost-gpu",
    "/dev/nvhost-as-gpu",
    "/dev/host1x-fence",
)
CARD = (CARD_NUMBERED, CARD_CONTROL, "/dev/nvidia-uvm")
OTHER = ("/dev/kfd", "/dev/dxg")
ALL = (*TEGRA, *CARD, RENDER, *OTHER)

GROUPS = {"video": TEGRA, "render": (RENDER,), "the owner of": CARD}  # of what CUDA opens
NVIDIA = (NVMAP, CARD_NUMBERED, *NVGPU)  # one of them is there wherever NVIDIA's driver has a GPU
ASKED = ("/dev/nvhost-ctrl", "/dev/host1x-fence", CARD_CONTROL)  # opened also by who only looks, or only shows pictures
HELD = re.compile("|".join(fnmatch.translate(node) for node in (*ALL, "/dev/nvgpu/*") if node not in ASKED))


def there(host: Host, nodes: Iterable[str] = (*NVIDIA, RENDER, *OTHER)) -> bool:
    """Whether this machine has one of these nodes: by default, that of any GPU."""
    return any(host.glob(node) for node in nodes)


def unreadable(host: Host, nodes: Iterable[str] = ALL) -> list[str]:
    """Those that are there and that this user may not read."""
    return [path for node in nodes for path in host.glob(node) if not host.readable(path)]


def is_held(path: str) -> bool:
    """Whether a process that has this file open uses a GPU."""
    return HELD.match(path) is not None
