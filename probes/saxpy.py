"""The known answer that the GPU probes compute: y = 3x + y on 1,048,576 floats, every number of it compared.

All values are whole numbers below 2**24: float32 holds them exactly, and a device that fuses multiply and add must
give the same bits as one that does not. No result equals one of its inputs, so a kernel that did not run is seen.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status, Witness, cut

COUNT = 1 << 20
FACTOR = 3.0
GROUP = 64  # invocations per work group, as in the kernels; 16384 groups, below the 65535 every API allows
EXECUTED = f"saxpy, {COUNT} floats"
KERNELS = Path(__file__).parent / "kernels"

# Names under which drivers present a CPU, sometimes as a virtual GPU or through another API (zink, clvk, Venus).
SOFTWARE = re.compile(r"llvmpipe|lavapipe|softpipe|swrast|swiftshader|software rasterizer|basic render driver", re.I)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel is given and what it must answer, a·x + b·y: float32 in the machine's byte order, as many each."""

    x: bytes
    y: bytes
    expected: bytes
    answer: str
    a: float = FACTOR
    b: float = 1.0


def problem() -> Problem:
    """The one problem: x = 1, 2, 3...; y = COUNT, COUNT - 1...; hence 3x + y = COUNT + 3, COUNT + 5..."""
    expected = array("f", range(COUNT + 3, 3 * COUNT + 3, 2)).tobytes()
    return Problem(
        x=array("f", range(1, COUNT + 1)).tobytes(),
        y=array("f", range(COUNT, 0, -1)).tobytes(),
        expected=expected,
        answer=describe(expected, expected),
    )


def sum_of(x: Sequence[int], y: Sequence[int], a: int = 1, b: int = 1) -> Problem:
    """The problem a·x + b·y of whole numbers, which are to stay below 2**24."""
    expected = array("f", (a * one + b * other for one, other in zip(x, y, strict=True))).tobytes()
    return Problem(
        x=array("f", x).tobytes(),
        y=array("f", y).tobytes(),
        expected=expected,
        answer=describe(expected, expected),
        a=a,
        b=b,
    )


def describe(result: bytes, expected: bytes) -> str:
    """How many numbers of `result` are right, the first wrong one, and a hash of all; both float32."""
    if len(result) != len(expected):
        return f"{len(result)} bytes instead of {len(expected)}"
    digest = hashlib.sha256(result).hexdigest()[:16]
    total = len(expected) // 4
    if result == expected:
        return f"{total} of {total} numbers right, sha256 {digest}"
    got, want = array("f", result), array("f", expected)
    wrong = [i for i in range(total) if got[i] != want[i]]
    first = f"number {wrong[0]} is {got[wrong[0]]:g}, not {want[wrong[0]]:g}" if wrong else "other bits"
    return f"{total - len(wrong)} of {total} numbers right, {first}, sha256 {digest}"


def kernel(name: str) -> bytes:
    """The shipped kernel `name`, as the device takes it."""
    return (KERNELS / name).read_bytes()


def kind_of(kind: DeviceKind, name: str) -> DeviceKind:
    """`kind` as the API says it, but CPU for the known software devices: they never count as a GPU."""
    return DeviceKind.CPU if SOFTWARE.search(name) else kind


def compared(given: Problem, device: Device, result: bytes, elapsed_s: float | None, timer: str) -> Evidence:
    """What `device` answered, beside what it should have.

    Args:
        given: the problem it was given.
        device: where the kernel ran.
        result: float32, `COUNT` of them.
        elapsed_s: seconds the kernel took; None when the device has no usable clock.
        timer: "device" or "host".
    """
    return Evidence(
        executed=EXECUTED,
        device=device.name,
        device_kind=device.kind,
        value=describe(result, given.expected),
        expected=given.answer,
        elapsed_s=elapsed_s,
        timer="" if elapsed_s is None else timer,
    )


def failed(given: Problem, device: Device, words: str) -> Evidence:
    """The kernel did not run to its end on `device`; `words` is what the API said."""
    return Evidence(
        executed=EXECUTED,
        device=device.name,
        device_kind=device.kind,
        value=cut(f"failed: {words}"),
        expected=given.answer,
    )


def candidates(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices to run on: every one that isn't a CPU, else the software devices."""
    hardware = tuple(d for d in devices if d.kind is not DeviceKind.CPU)
    return hardware or tuple(devices)


def verdict(evidence: Sequence[Evidence], why_no_gpu: str = "") -> tuple[Status, str]:
    """Status and reason from what the devices answered.

    Args:
        evidence: one per device on which the kernel was run, at least one.
        why_no_gpu: what may explain that only a software device answered; may be empty.

    Returns: WORKS when a device was right and none of a better kind was wrong; the reason names every failing one.
    """
    right = [e for e in evidence if e.is_right]
    wrong = "; ".join(f"{e.device} gave a wrong answer: {e.value}" for e in evidence if not e.is_right)
    wrong = wrong.replace("gave a wrong answer: failed:", "failed:")
    if not right:
        return Status.BROKEN, f"{EXECUTED}: {wrong}"
    if all(e.device_kind is DeviceKind.CPU for e in right):
        only = f"only a software device ({right[0].device}) answered; no GPU"
        return Status.WORKS, "; ".join(part for part in (only, why_no_gpu, wrong) if part)
    return Status.WORKS, f"{right[0].device} was right, but {wrong}" if wrong else ""


def finding(
    subject: str,
    layer: int,
    status: Status,
    reason: str,
    remedy: str = "",
    facts: Mapping[str, Fact] | None = None,
    *,
    version: str = "",
    devices: tuple[Device, ...] = (),
    evidence: tuple[Evidence, ...] = (),
    witnesses: tuple[Witness, ...] = (),
) -> Finding:
    """A finding of a GPU probe; each probe binds the first two arguments."""
    return Finding(
        subject=subject,
        layer=layer,
        status=status,
        reason=reason,
        remedy=remedy,
        version=version,
        facts=dict(facts or {}),
        devices=devices,
        evidence=evidence,
        witnesses=witnesses,
    )
