"""Which road a model takes: a table of devices and demands, and the reasons of the refused roads.

The plan is a pure function, so that the runners here are plain values: what they would execute is never called.
That the real ones are found is a test of its own, near the end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes.contract import CapabilityReport, Device, DeviceIdentity, DeviceKind, Evidence, Finding, Status
from runners import registry
from runners.contract import Backend, RequestRejected, RuntimeUnavailable, Verdict
from runners.model import ModelInfo
from runners.route import Plan, plan

GIB = 1 << 30
GPU, CPU, UNKNOWN = DeviceKind.GPU, DeviceKind.CPU, DeviceKind.UNKNOWN
LLM = ModelInfo(
    path="llm.gguf",
    format="gguf",
    size_bytes=4_900_000_000,
    task="chat",
    context_tokens=131072,
    layers=32,
    embedding_length=4096,
    kv_heads=(8,) * 32,
    key_length=128,
    value_length=128,
    vocabulary=128256,
    tensors_bytes=4_900_000_000,
)
NET = ModelInfo(path="net.onnx", format="onnx", size_bytes=7_000_000, tensors_bytes=7_000_000, task="classification")


def a_runner(wanted: str, *backends: Backend) -> Any:
    def accepts(model: ModelInfo) -> Verdict:
        taken = model.format == wanted
        return Verdict(accepted=taken, reason="" if taken else f"it reads {wanted} only", remedy="convert it")

    return SimpleNamespace(BACKENDS=backends, accepts=accepts)


RUNNERS = {
    "llama": a_runner(
        "gguf",
        Backend(name="cuda", api="cuda"),
        Backend(name="vulkan", api="vulkan"),
        Backend(name="cpu", kind=CPU),
    ),
    "ort": a_runner("onnx", Backend(name="tensorrt", api="tensorrt"), Backend(name="cpu", kind=CPU)),
}


def works(subject: str, kind: DeviceKind, name: str = "", memory_bytes: int | None = None) -> Finding:
    device = name or {GPU: "Orin", CPU: "ARMv8 CPU"}.get(kind, "")
    return Finding(
        subject=subject,
        layer=5,
        status=Status.WORKS,
        devices=(Device(index=3, name=device, kind=kind, memory_bytes=memory_bytes),),
        evidence=(Evidence(executed="tiny", device=device, device_kind=kind, value="4", expected="4"),),
    )


def fails(subject: str, status: Status, reason: str, remedy: str = "") -> Finding:
    return Finding(subject=subject, layer=5, status=status, reason=reason, remedy=remedy)


def memory(available_bytes: int | None) -> Finding:
    facts = {"memory_available_bytes": available_bytes}
    return Finding(subject="memory", layer=0, status=Status.WORKS, facts=facts)


def report(*findings: Finding) -> CapabilityReport:
    return CapabilityReport(
        device=DeviceIdentity(id="d"),
        taken_at="2025-01-01T00:00:00Z",
        clock_synchronised=True,
        agent_version="0",
        findings=findings,
        fingerprint="",
    )


CUDA, VULKAN, LLAMA_CPU = works("llama/cuda", GPU), works("llama/vulkan", GPU), works("llama/cpu", CPU)
LAVAPIPE = works("llama/vulkan", CPU, "llvmpipe")
NO_CUDA = fails("llama/cuda", Status.ABSENT, "built without CUDA", "rebuild it")
ROOM = memory(32 * GIB)

# findings, demands -> accepted roads in order; each refused road with a word of its reason
TABLE: dict[str, tuple[list[Finding], dict[str, Any], list[str], dict[str, str]]] = {
    "a GPU before the CPU": (
        [ROOM, LLAMA_CPU, VULKAN, CUDA],
        {},
        ["llama/cuda", "llama/vulkan", "llama/cpu"],
        {},
    ),
    "no CUDA in the build": (
        [ROOM, NO_CUDA, VULKAN, LLAMA_CPU],
        {},
        ["llama/vulkan", "llama/cpu"],
        {"llama/cuda": "absent: built without CUDA"},
    ),
    "a broken and an unknown backend": (
        [
            ROOM,
            fails("llama/cuda", Status.BROKEN, "SIGSEGV in libcuda"),
            fails("llama/vulkan", Status.UNKNOWN, "a recorded device"),
            LLAMA_CPU,
        ],
        {},
        ["llama/cpu"],
        {"llama/cuda": "broken: SIGSEGV in libcuda", "llama/vulkan": "unknown: a recorded device"},
    ),
    "nothing was checked": (
        [ROOM],
        {},
        [],
        {"llama/cuda": "was not checked", "llama/vulkan": "was not checked", "llama/cpu": "was not checked"},
    ),
    "a software device is no GPU": (
        [ROOM, NO_CUDA, LAVAPIPE, LLAMA_CPU],
        {},
        ["llama/cpu"],
        {"llama/cuda": "absent", "llama/vulkan": "llvmpipe is a software device (cpu), not a GPU"},
    ),
    "a software device on request": (
        [ROOM, NO_CUDA, LAVAPIPE, LLAMA_CPU],
        {"allow_software_devices": True},
        ["llama/vulkan", "llama/cpu"],
        {"llama/cuda": "absent"},
    ),
    "a software device before a demanded GPU": (
        [ROOM, NO_CUDA, LAVAPIPE, LLAMA_CPU],
        {"allow_software_devices": True, "require_gpu": True},
        [],
        {"llama/cuda": "absent", "llama/vulkan": "a GPU was demanded", "llama/cpu": "a GPU was demanded"},
    ),
    "a GPU is demanded and there": (
        [ROOM, CUDA, VULKAN, LLAMA_CPU],
        {"require_gpu": True},
        ["llama/cuda", "llama/vulkan"],
        {"llama/cpu": "a GPU was demanded, and ARMv8 CPU is a CPU"},
    ),
    "a device that was not proven": (
        [ROOM, works("llama/cuda", UNKNOWN), VULKAN, LLAMA_CPU],
        {},
        ["llama/vulkan", "llama/cpu"],
        {"llama/cuda": "did not prove"},
    ),
    "another runtime is asked for": (
        [ROOM, CUDA, VULKAN, LLAMA_CPU],
        {"runtime": "ort"},
        [],
        dict.fromkeys(("llama/cuda", "llama/vulkan", "llama/cpu"), "another runtime was asked for: ort"),
    ),
    "too little memory": (
        [memory(2 * GIB), CUDA, VULKAN, LLAMA_CPU],
        {},
        [],
        dict.fromkeys(("llama/cuda", "llama/vulkan", "llama/cpu"), "of 2.00 GiB"),
    ),
    "a GPU with a smaller context before the CPU": (
        [memory(int(6.2 * GIB)), CUDA, NO_CUDA, LLAMA_CPU],
        {},
        ["llama/cuda", "llama/cpu"],
        {"llama/vulkan": "was not checked"},
    ),
    "the GPU has less memory than the system": (
        [ROOM, works("llama/cuda", GPU, memory_bytes=4 * GIB), VULKAN, LLAMA_CPU],
        {},
        ["llama/vulkan", "llama/cpu"],
        {"llama/cuda": "of 4.00 GiB"},
    ),
    "memory that nobody knows": (
        [memory(None), CUDA, VULKAN, LLAMA_CPU],
        {},
        ["llama/cuda", "llama/vulkan", "llama/cpu"],
        {},
    ),
}


def named(made: Plan) -> tuple[list[str], dict[str, str]]:
    accepted = [f"{route.runtime}/{route.backend}" for route in made.accepted]
    return accepted, {f"{route.runtime}/{route.backend}": route.reason for route in made.refused}


@pytest.mark.parametrize("name", TABLE)
def test_the_table_of_roads(name: str) -> None:
    findings, demands, accepted, refused = TABLE[name]
    taken, reasons = named(plan(LLM, report(*findings), RUNNERS, **demands))
    assert reasons.pop("ort/") == "it reads onnx only"
    assert taken == accepted
    assert reasons.keys() == refused.keys()
    for road, word in refused.items():
        assert word in reasons[road]


@pytest.mark.parametrize("model", [LLM, NET])
def test_each_backend_is_judged_once_and_each_refusal_has_a_reason(model: ModelInfo) -> None:
    made = plan(model, report(ROOM, CUDA, LLAMA_CPU, works("ort/cpu", CPU)), RUNNERS)
    roads = [(route.runtime, route.backend) for route in (*made.accepted, *made.refused)]
    taker, other = ("llama", "ort") if model is LLM else ("ort", "llama")
    assert sorted(roads) == sorted([(other, ""), *((taker, backend.name) for backend in RUNNERS[taker].BACKENDS)])
    assert all(route.reason for route in made.refused)
    assert all(route.accepted for route in made.accepted)


def test_a_road_names_device_api_and_what_it_rests_on() -> None:
    best = plan(LLM, report(ROOM, works("cuda", GPU), CUDA), RUNNERS).best
    assert best is not None
    assert (best.api, best.device, best.device_index, best.device_kind) == ("cuda", "Orin", 3, GPU)
    assert best.rests_on == ("llama/cuda", "cuda", "memory")
    assert best.fit is not None
    assert best.fit.fits is True


def test_the_remedy_of_a_finding_is_passed_on() -> None:
    made = plan(LLM, report(ROOM, NO_CUDA), RUNNERS)
    assert next(route for route in made.refused if route.backend == "cuda").remedy == "rebuild it"


def test_a_refusal_tells_what_is_wrong_with_the_api_below() -> None:
    below = fails("vulkan", Status.BROKEN, "the driver file names a missing library", "install it again")
    made = plan(LLM, report(ROOM, below, fails("llama/vulkan", Status.UNKNOWN, "no device")), RUNNERS)
    refused = next(route for route in made.refused if route.backend == "vulkan")
    assert "no device; below it, vulkan is broken: the driver file names a missing library" in refused.reason
    assert refused.remedy == "install it again"


def test_a_context_that_nobody_demanded_is_lowered_to_what_fits() -> None:
    best = plan(LLM, report(memory(int(6.2 * GIB)), CUDA), RUNNERS).best
    assert best is not None
    assert best.context_tokens is not None
    assert 512 <= best.context_tokens < 4096
    assert f"lowered from 4096 to {best.context_tokens}" in best.reason
    assert best.fit is not None
    assert best.fit.fits is True


def test_a_context_that_was_demanded_is_refused_with_the_one_that_fits() -> None:
    made = plan(LLM, report(memory(int(6.2 * GIB)), CUDA), RUNNERS, context_tokens=16384)
    assert made.best is None
    refused = next(route for route in made.refused if route.backend == "cuda")
    assert "kv cache 2.00 GiB" in refused.reason
    assert "tokens fits" in refused.remedy


def test_a_context_beyond_the_training_is_lowered_and_told() -> None:
    best = plan(LLM, report(memory(64 * GIB), CUDA), RUNNERS, context_tokens=200_000).best
    assert best is not None
    assert best.context_tokens == 131072
    assert "lowered from 200000" in best.reason


def test_a_context_of_no_tokens_is_a_wrong_question() -> None:
    with pytest.raises(RequestRejected):
        plan(LLM, report(), RUNNERS, context_tokens=0)


def test_a_tensor_model_has_no_context() -> None:
    best = plan(NET, report(ROOM, works("ort/cpu", CPU)), RUNNERS).best
    assert best is not None
    assert best.context_tokens is None


def test_a_separate_gpu_memory_counts_alone() -> None:
    card = works("llama/cuda", GPU, memory_bytes=24 * GIB)
    below = Finding(subject="cuda", layer=2, status=Status.WORKS, facts={"integrated": False})
    best = plan(LLM, report(memory(4 * GIB), below, card), RUNNERS).best
    assert best is not None
    assert best.fit is not None
    assert best.fit.available_bytes == 24 * GIB


def cuda_below(*numbers: int, free_bytes: int = 5 * GIB, memory_bytes: int = 8 * GIB) -> Finding:
    """A discrete card's finding about CUDA."""
    return Finding(
        subject="cuda",
        layer=2,
        status=Status.WORKS,
        facts={"integrated": False, "cuda_memory_free_bytes": free_bytes},
        devices=tuple(Device(index=n, name=f"RTX {n}", kind=GPU, memory_bytes=memory_bytes) for n in numbers),
    )


ORT = {"ort": a_runner("onnx", Backend(name="cuda", api="cuda"))}
ORT_CUDA = Finding(
    subject="ort/cuda",
    layer=4,
    status=Status.WORKS,
    evidence=(
        Evidence(executed="tiny", device="CUDAExecutionProvider, device 0", device_kind=GPU, value="4", expected="4"),
    ),
)


def test_a_runtime_that_lists_no_device_has_the_memory_of_the_apis_first_and_not_the_systems() -> None:
    best = plan(NET, report(memory(64 * GIB), cuda_below(1, 0), ORT_CUDA), ORT).best
    assert best is not None
    assert best.fit is not None
    assert (best.device, best.device_index, best.fit.available_bytes) == ("RTX 0", 0, 5 * GIB)


def test_what_is_free_of_a_card_counts_for_that_card_only() -> None:
    other = works("llama/cuda", GPU, "RTX 3", memory_bytes=8 * GIB)  # number 3
    best = plan(LLM, report(ROOM, cuda_below(0, 3), other), RUNNERS).best
    assert best is not None
    assert best.fit is not None
    assert best.fit.available_bytes == 8 * GIB


def test_a_device_without_a_known_answer_was_not_proven() -> None:
    reading = Evidence(executed="read a name", device="Orin", device_kind=GPU)
    finding = Finding(subject="llama/cuda", layer=5, status=Status.WORKS, evidence=(reading,))
    assert finding.device_kind is UNKNOWN
    made = plan(LLM, report(ROOM, finding), RUNNERS)
    assert "did not prove" in next(route for route in made.refused if route.backend == "cuda").reason


IMPORTS = """
import sys
from runners.registry import runners
print(",".join(sorted(runners())))
print([name for name in ("llama_cpp", "onnxruntime", "numpy", "click", "rich") if name in sys.modules])
"""


def test_the_runners_of_the_folder_are_found_without_their_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=60, check=False)
    names, loaded = done.stdout.splitlines()
    assert {"llama_cpp", "onnxruntime"} <= set(names.split(","))
    assert loaded == "[]"


def test_an_unknown_runtime_is_told_with_the_known_ones() -> None:
    with pytest.raises(RuntimeUnavailable) as caught:
        registry.runner("nope")
    assert "llama_cpp" in caught.value.remedy


def test_a_runner_that_can_not_be_imported_does_not_vanish(tmp_path: Path) -> None:
    (tmp_path / "not_there.py").write_text("BACKENDS = ()\n")
    made = plan(LLM, report(), registry.find(tmp_path))
    assert made.refused[0].runtime == "not_there"
    assert "runners/not_there.py can't be imported" in made.refused[0].reason
