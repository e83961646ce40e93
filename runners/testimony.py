"""Witnesses to a runner's check: where its runtime placed the model, and the same model on the CPU.

The counters between them are those of `probes.witness`: a check loads its model in its own child process.
"""

from __future__ import annotations

from collections.abc import Callable

from probes import witness
from probes.contract import DeviceKind, Evidence, Witness, WitnessKind
from runners.contract import Placement, PlacementPart, RunnerError

ITSELF = "a CPU did this work itself: there is nothing to compare it with"
NO_PROOF = "the runtime does not tell where it placed the model"


def by_placement(placement: Placement, proven: bool) -> Witness:
    """The runtime's own evidence; it speaks when this proves that everything lay where it was asked for."""
    text = "; ".join(map(part_text, placement.parts)) or NO_PROOF
    return Witness(kind=WitnessKind.API, source=placement.source or "placement", spoke=proven, text=text)


def part_text(part: PlacementPart) -> str:
    """One device's share in words: "CUDA0 (gpu): 3 layers, 187 KiB"."""
    shares = [f"{number} {name}" for number, name in ((part.layers, "layers"), (part.nodes, "nodes")) if number]
    shares += [f"{part.bytes >> 10} KiB"] if part.bytes else []
    return f"{part.device} ({part.device_kind.value}): {', '.join(shares) or 'nothing that it counts'}"


def by_cpu(backend: str, evidence: Evidence, work: Callable[[], tuple[bool, float | None]]) -> Witness:
    """The same model on the CPU; silent when the CPU was the one that was checked, and when it fails.

    Args:
        backend: that was checked.
        evidence: what it answered.
        work: loads and runs the model on the CPU: (whether its answer is the same, seconds of the run).
    """
    if backend == DeviceKind.CPU.value:
        return witness.not_compared(ITSELF)
    if not evidence.is_right:
        return witness.not_compared("the answer was wrong")
    try:
        agrees, elapsed_s = work()
    except RunnerError as error:
        return witness.not_compared(f"the CPU could not do the same: {error.reason}")
    return witness.compared("the runtime's CPU backend", agrees, elapsed_s, (evidence,))
