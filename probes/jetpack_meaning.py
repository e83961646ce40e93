"""A difference between a Jetson's system and its release: what is found, what it should be, and what that means."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from probes import l4t

FINISH = "finish the upgrade: sudo apt --fix-broken install && sudo apt dist-upgrade, then reboot"
BRING = "sudo apt update && sudo apt install nvidia-jetpack brings this release's own"
LABELS = {
    "l4t": "L4T",
    "jetpack": "the package nvidia-jetpack",
    "ubuntu": "Ubuntu",
    "kernel": "kernel",
    "python": "Python",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "tensorrt": "TensorRT",
    "vpi": "VPI",
    "opencv": "OpenCV",
}


class Meaning(enum.Enum):
    """What a difference says."""

    HALF_UPGRADED = "half_upgraded"  # two releases are mixed: an upgrade did not end, or left something behind
    WRONG_RELEASE = "wrong_release"  # made for another release, and can't serve this one
    NEEDS_COMPAT = "needs_compat"  # a newer CUDA than the driver's, without the package that makes it work
    UPGRADED = "upgraded"  # newer on purpose, and allowed
    OWN = "own"  # another build, which does not depend on the release
    CONTAINER = "container"  # the image's own, as it should be


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One part that is not what the release came with; `remedy` is empty where nothing need be done."""

    component: str
    found: str
    expected: str
    meaning: Meaning
    why: str
    remedy: str = ""

    def tell(self, release: str) -> str:
        """In words: "CUDA 12.8 is installed, JetPack 6.2 came with 12.6: ..."."""
        if self.component == "l4t":  # both sides are L4T's own, and not the release against the system
            return self.why
        verb = "runs" if self.component == "kernel" else "is installed"
        return f"{LABELS[self.component]} {self.found} {verb}, {release} came with {self.expected}: {self.why}"

    @property
    def fact(self) -> dict[str, str | int | float | None]:
        """As the finding has it."""
        return {
            "component": self.component,
            "found": self.found,
            "expected": self.expected,
            "meaning": self.meaning.value,
        }


def l4t_difference(file: str, package: str) -> Difference:
    """The release file and the package nvidia-l4t-core name two releases of L4T."""
    return Difference(
        component="l4t",
        found=package,
        expected=file,
        meaning=Meaning.HALF_UPGRADED,
        why=f"{l4t.RELEASE_FILE} says {file}, but the package {l4t.CORE_PACKAGE} is {package}",
        remedy=FINISH,
    )


def remedies(differences: Iterable[Difference]) -> str:
    """All remedies, each once."""
    return "; ".join(dict.fromkeys(difference.remedy for difference in differences if difference.remedy))
