"""GPUs on PCI as sysfs lists them. On a Jetson before Thor the GPU is not on PCI; its bridges are."""

from __future__ import annotations

import msgspec

from probes.host import Host

NVIDIA = "10de"
DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators


class PciGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One display controller.

    Attributes:
        address: "0000:01:00.0".
        vendor, device: four hexadecimal digits; device is "" when it can't be read.
        driver: kernel driver bound to it; None when none is, or when a recording leaves it out.
    """

    address: str
    vendor: str
    device: str
    driver: str | None

    @property
    def text(self) -> str:
        """For people: "0000:01:00.0 10de:2204 (nvidia)"."""
        return f"{self.address} {self.vendor}:{self.device or '?'}" + (f" ({self.driver})" if self.driver else "")


def read_gpus(host: Host) -> tuple[PciGpu, ...]:
    """Display controllers in the order of their address.

    A device without a readable class counts only when it is NVIDIA's, as recordings often have just its ids.
    """
    found = []
    for path in host.glob("/sys/bus/pci/devices/*/vendor"):
        folder = path.rpartition("/")[0]
        vendor = (host.line(path) or "").removeprefix("0x").lower()
        kind = host.line(f"{folder}/class")
        if kind.startswith(DISPLAY_CLASSES) if kind else vendor == NVIDIA:
            link = host.link(f"{folder}/driver")
            found.append(
                PciGpu(
                    address=folder.rpartition("/")[2],
                    vendor=vendor,
                    device=(host.line(f"{folder}/device") or "").removeprefix("0x").lower(),
                    driver=link.rpartition("/")[2] if link else None,
                )
            )
    return tuple(found)


def nvidia_gpus(host: Host) -> tuple[PciGpu, ...]:
    """NVIDIA's among `read_gpus`."""
    return tuple(gpu for gpu in read_gpus(host) if gpu.vendor == NVIDIA)
