"""What a check finds out, as data: findings, their evidence, and the report made of them.

Everything here is frozen, prints as JSON and validates when read back; nothing here touches the machine.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

SCHEMA_VERSION = 1
EVIDENCE_BYTES = 2048  # longest text kept of what a check printed

# One array-like and one object-like type: msgspec takes no more in a union.
Named = Mapping[str, str | int | float | None]
Fact = str | int | float | bool | None | Sequence[str | int | float | Named] | Named


class Status(enum.Enum):
    """The four answers a check can give."""

    WORKS = "works"  # executed, and the answer was right
    BROKEN = "broken"  # there, but failed, answered wrongly or not in time
    ABSENT = "absent"  # not installed, or the hardware is not there
    UNKNOWN = "unknown"  # could not be tried: permission, a recorded device, something below is not working


class DeviceKind(enum.Enum):
    """What kind of processor answered; a software device (llvmpipe, PoCL) is a CPU."""

    GPU = "gpu"
    CPU = "cpu"
    NPU = "npu"
    UNKNOWN = "unknown"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One thing that was executed or read, and what it answered.

    Attributes:
        executed: what was run, e.g. "saxpy, 1048576 floats".
        device: name of the device as its driver gives it; empty when nothing was executed.
        value: the answer, as text; at most `EVIDENCE_BYTES`.
        expected: the known answer it was compared with; empty for a mere reading.
        elapsed_s: seconds; None when not timed.
        timer: "device" when the API's own timestamps were read, "host" otherwise, "" when not timed.
    """

    executed: str
    device: str = ""
    device_kind: DeviceKind = DeviceKind.UNKNOWN
    value: str = ""
    expected: str = ""
    elapsed_s: float | None = None
    timer: str = ""

    @property
    def is_right(self) -> bool:
        """Whether a device gave the known answer; a mere reading, which expects none, is no proof."""
        return bool(self.device and self.expected) and self.value == self.expected


class WitnessKind(enum.Enum):
    """Who can testify that a device, and no other, did the work."""

    API = "api"  # the API's own device and its own timestamps
    COUNTERS = "counters"  # the platform's, attributed to the check's process where it can tell processes apart
    COMPARISON = "comparison"  # the same work on the CPU: its value and its time


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """One witness to what was executed.

    Attributes:
        source: where it looked: "VkQueryPool timestamps", "NVML processes", "devfreq load".
        spoke: whether it had anything to say; one that is not there, or can't be read, is silent.
        text: what it said, or why it was silent.
    """

    kind: WitnessKind
    source: str
    spoke: bool
    text: str


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that an API lists. `index` is the API's own number, before any filtering."""

    index: int
    name: str
    kind: DeviceKind
    vendor: str = ""
    driver: str = ""
    api_version: str = ""
    memory_bytes: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check found.

    Attributes:
        subject: the probe's file name ("vulkan"), or "<runtime>/<backend>" for a runner's check.
        layer: 0-7, see docs/layers in the README.
        reason: one sentence for a person; empty only with WORKS.
        remedy: what to do about it; empty when nothing is known.
        version: as the thing itself reports it.
        facts: readings; the unit is in the name ("memory_total_bytes"). None means unknown, never 0.
        witnesses: who was asked whether the device did the work, those that were silent as well.
        taken_at: ISO 8601, UTC: when it was executed; set by `isolation`, as `duration_s` (seconds) is.
        memory_peak_bytes: the most that was resident of the check's process, or of a command that it ran; set by
            `child`; None when it did not live to tell. A reading, no part of the fingerprint.
        ground: a hash of what the finding rests on (drivers, manifests, packages, kernel), see `probes.ground`; a
            finding whose ground has changed is stale. Empty for readings, which are taken anew each time.
    """

    subject: str
    layer: int
    status: Status
    reason: str = ""
    remedy: str = ""
    version: str = ""
    devices: tuple[Device, ...] = ()
    facts: Mapping[str, Fact] = {}
    evidence: tuple[Evidence, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    duration_s: float = 0.0
    memory_peak_bytes: int | None = None
    taken_at: str = ""
    ground: str = ""

    @property
    def device_kind(self) -> DeviceKind:
        """The best kind of device on which something was executed with the right answer."""
        kinds = [e.device_kind for e in self.evidence if e.is_right]
        for kind in (DeviceKind.GPU, DeviceKind.NPU, DeviceKind.CPU):
            if kind in kinds:
                return kind
        return DeviceKind.UNKNOWN

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices that are listed, else those on which something was executed; each once."""
        names = [device.name for device in self.devices] or [e.device for e in self.evidence if e.device]
        return tuple(dict.fromkeys(names))


class DeviceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which device a report is about; empty strings where the machine does not say."""

    id: str
    model: str = ""
    module: str = ""
    soc: str = ""
    serial: str = ""
    l4t: str = ""
    jetpack: str = ""
    architecture: str = ""


class CapabilityReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about one device at one time.

    Attributes:
        taken_at: ISO 8601, UTC.
        clock_synchronised: None when the machine does not say; wall times are then a guess.
        fingerprint: changes only when a capability changes, not with readings (see `fingerprint`).
    """

    schema_version: int = SCHEMA_VERSION
    device: DeviceIdentity
    taken_at: str
    clock_synchronised: bool | None
    agent_version: str
    findings: tuple[Finding, ...]
    fingerprint: str

    def finding(self, subject: str) -> Finding | None:
        """The finding about `subject`, or None when it was not surveyed."""
        return next((f for f in self.findings if f.subject == subject), None)


def fingerprint(findings: tuple[Finding, ...]) -> str:
    """A short hash of what the device can do, blind to readings such as free memory or timings.

    Returns: 16 hexadecimal digits.
    """
    parts = [
        (
            f.subject,
            f.status.value,
            f.version,
            f.device_kind.value,
            [(d.index, d.name, d.kind.value) for d in f.devices],
        )
        for f in sorted(findings, key=lambda f: f.subject)
    ]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def cut(text: str, limit: int = EVIDENCE_BYTES) -> str:
    """`text` without NUL bytes, at most `limit` characters, the end kept: errors stand at the end."""
    text = text.replace("\0", "").strip()
    return text if len(text) <= limit else "…" + text[1 - limit :]


class Probe(Protocol):
    """A module in this folder: a docstring whose first line says what is executed, `LAYER`, and `check`."""

    LAYER: int
    check: Callable[..., Finding]
