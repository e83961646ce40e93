"""Who testifies to a runner's check: placement, counters, and the same model on the CPU, executed for real here."""

from __future__ import annotations

import msgspec
import pytest

from probes import witness
from probes.contract import DeviceKind, Evidence, Finding, WitnessKind
from runners import llama_cpp, onnxruntime, testimony
from runners.contract import Placement, PlacementPart, RuntimeUnavailable
from runners.llama_api import LlamaApi
from runners.tiny import make_onnx

API, COUNTERS, COMPARISON = WitnessKind.API, WitnessKind.COUNTERS, WitnessKind.COMPARISON
RIGHT = Evidence(
    executed="x", device="Orin", device_kind=DeviceKind.GPU, value="1", expected="1", elapsed_s=0.5, timer="host"
)


def placed(*parts: PlacementPart) -> Placement:
    return Placement(parts=parts, source="the log")


def test_the_placement_tells_each_devices_share() -> None:
    gpu = PlacementPart(device="CUDA0", device_kind=DeviceKind.GPU, layers=3, bytes=200_000)
    rest = PlacementPart(device="CPU", device_kind=DeviceKind.CPU, layers=0)
    said = testimony.by_placement(placed(gpu, rest), True)
    assert (said.kind, said.source, said.spoke) == (API, "the log", True)
    assert said.text == "CUDA0 (gpu): 3 layers, 195 KiB; CPU (cpu): nothing that it counts"


def test_a_placement_that_proves_nothing_is_silent_with_the_reason() -> None:
    said = testimony.by_placement(Placement(), False)
    assert (said.spoke, said.source, said.text) == (False, "placement", testimony.NO_PROOF)


def test_the_cpu_is_not_compared_with_itself() -> None:
    said = testimony.by_cpu("cpu", RIGHT, lambda: pytest.fail("it was executed twice"))
    assert (said.spoke, said.text) == (False, testimony.ITSELF)


def test_a_wrong_answer_is_not_compared() -> None:
    wrong = msgspec.structs.replace(RIGHT, value="2")
    assert not testimony.by_cpu("cuda", wrong, lambda: pytest.fail("it was executed")).spoke


def test_a_cpu_that_fails_is_silent_with_the_reason() -> None:
    def work() -> tuple[bool, float | None]:
        raise RuntimeUnavailable("no memory left")

    said = testimony.by_cpu("cuda", RIGHT, work)
    assert (said.spoke, said.text) == (False, "the CPU could not do the same: no memory left")


@pytest.mark.parametrize(("agrees", "words"), [(True, "the same answer"), (False, "ANOTHER answer")])
def test_the_comparison_tells_both_times(agrees: bool, words: str) -> None:
    said = testimony.by_cpu("cuda", RIGHT, lambda: (agrees, 1.0))
    assert said.spoke is agrees
    assert said.text == f"the runtime's CPU backend: {words} in 1e+03 ms; Orin took 500 ms, 2 x as fast"


def kinds(finding: Finding) -> list[tuple[WitnessKind, bool]]:
    return [(said.kind, said.spoke) for said in finding.witnesses]


def test_llama_cpp_on_the_cpu_claims_no_gpu() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: no witness was asked about it")
    finding = llama_cpp.check("cpu")
    assert kinds(finding) == [(API, True), (COUNTERS, False), (COMPARISON, False)]
    assert finding.witnesses[0].text.startswith("CPU (cpu): 3 layers, ")
    assert finding.witnesses[1].text == witness.NOT_COUNTED[DeviceKind.CPU]


def test_llama_cpp_elsewhere_is_compared_token_by_token() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: no tokens were compared")
    api = LlamaApi()
    device = next(device for device in api.devices() if device.backend == "CPU")  # as a software device of Vulkan's
    finding = llama_cpp._execute(api, "vulkan", device)
    assert kinds(finding) == [(API, True), (COUNTERS, False), (COMPARISON, True)]
    assert "the same answer in " in finding.witnesses[2].text
    evidence = finding.evidence[0]
    assert not llama_cpp._on_cpu(api, "vulkan", evidence, [1, 2, 3]).spoke


def test_onnx_runtime_on_the_cpu_claims_no_gpu() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: no witness was asked about it")
    finding = onnxruntime.check("cpu")
    assert kinds(finding) == [(API, True), (COUNTERS, False), (COMPARISON, False)]
    assert finding.witnesses[0].text == "CPUExecutionProvider (cpu): 4 nodes"


def test_onnx_runtime_elsewhere_is_compared_by_its_output() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: no outputs were compared")
    assert onnxruntime._on_cpu("cuda", RIGHT, make_onnx.ANSWER).spoke
    assert not onnxruntime._on_cpu("cuda", RIGHT, (46.0, 4.0)).spoke
