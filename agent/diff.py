"""What has changed between two reports of a device, in words; readings such as free memory are no change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from probes.contract import CapabilityReport, Device, DeviceKind, Fact, Finding, Status

IDENTITY = ("id", "model", "module", "soc", "serial", "l4t", "jetpack", "architecture")
FACT_SUBJECTS = ("hardware", "jetpack", "permissions", "environment")  # whose facts are no readings


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference.

    Attributes:
        subject: of the finding; "device" for the identity.
        worse: whether something that worked no longer does, or only on another kind of device.
        text: the change as a sentence, with old and new value.
    """

    subject: str
    worse: bool = False
    text: str


def changes(old: CapabilityReport, new: CapabilityReport) -> list[Change]:
    """Every difference that matters, in the order of the newer report; what has gone comes last."""
    found = list(identity_changes(old, new))
    before = {finding.subject: finding for finding in old.findings}
    for finding in new.findings:
        earlier = before.pop(finding.subject, None)
        if earlier is None:
            found.append(Change(subject=finding.subject, text=f"is new: {state(finding)}"))
        else:
            found += finding_changes(earlier, finding)
    found += [
        Change(
            subject=gone.subject, worse=gone.status is Status.WORKS, text=f"is no longer checked; it was {state(gone)}"
        )
        for gone in before.values()
    ]
    return found


def identity_changes(old: CapabilityReport, new: CapabilityReport) -> Iterator[Change]:
    """Of the device itself: another L4T, another module on the carrier."""
    for name in IDENTITY:
        earlier, later = getattr(old.device, name), getattr(new.device, name)
        if earlier != later:
            yield Change(subject="device", text=f"{name}: {earlier or 'unknown'} → {later or 'unknown'}")


def finding_changes(old: Finding, new: Finding) -> Iterator[Change]:
    """Of one check."""
    subject = new.subject
    if (old.status, old.device_kind) != (new.status, new.device_kind):
        worse = old.status is Status.WORKS and rank(new) < rank(old)
        why = f": {new.reason}" if new.reason else ""
        yield Change(subject=subject, worse=worse, text=f"was {state(old)}, is {state(new)}{why}")
    elif new.status is not Status.WORKS and old.reason != new.reason:
        yield Change(subject=subject, text=f"is {state(new)} for another reason: {new.reason or 'none told'}")
    if old.version != new.version:
        yield Change(subject=subject, text=f"version: {old.version or 'unknown'} → {new.version or 'unknown'}")
    earlier, later = names(old.devices), names(new.devices)
    if earlier != later and old.status is new.status:
        yield Change(subject=subject, text=f"devices: {earlier or 'none'} → {later or 'none'}")
    if subject in FACT_SUBJECTS:
        for name in sorted({*old.facts, *new.facts}):
            before, after = old.facts.get(name), new.facts.get(name)
            if before != after:
                yield Change(subject=subject, text=f"{name}: {fact_text(before)} → {fact_text(after)}")


def rank(finding: Finding) -> int:
    """How good a finding is: nothing, on the CPU or unknown, on an accelerator."""
    if finding.status is not Status.WORKS:
        return 0
    return 2 if finding.device_kind in (DeviceKind.GPU, DeviceKind.NPU) else 1


def state(finding: Finding) -> str:
    """Status and device kind: "WORKS (gpu)"."""
    return finding.status.value.upper() + kind_text(finding)


def kind_text(finding: Finding) -> str:
    """The device kind in brackets, " (gpu)"; "" when nothing was executed with the right answer."""
    return "" if finding.device_kind is DeviceKind.UNKNOWN else f" ({finding.device_kind.value})"


def names(devices: tuple[Device, ...]) -> str:
    """The devices in the API's order."""
    return ", ".join(device.name for device in devices)


def fact_text(fact: Fact) -> str:
    """A fact for people: None is unknown, what is empty is none."""
    if fact is None:
        return "unknown"
    if isinstance(fact, dict):
        return ", ".join(f"{name}: {fact_text(value)}" for name, value in fact.items()) or "none"
    if isinstance(fact, (list, tuple)):
        between = "; " if any(isinstance(one, dict) for one in fact) else ", "
        return between.join(map(fact_text, fact)) or "none"
    return str(fact)
