"""ONNX Runtime's records and messages, read as it writes them."""

from __future__ import annotations

import json

import pytest

from probes.contract import DeviceKind
from runners import ort_errors
from runners.ort_profile import placement_from_assignment, placement_from_profile


def node(name: str, provider: str, op: str = "Conv", index: int = 0) -> dict[str, object]:
    """One event, cut to what counts, as ONNX Runtime 1.23 to 1.32 writes it."""
    arguments = {"op_name": op, "provider": provider, "node_index": str(index), "output_size": "256"}
    return {"cat": "Node", "pid": 1, "tid": 1, "dur": 91, "ts": 3278, "ph": "X", "name": name, "args": arguments}


SESSION = {"cat": "Session", "pid": 1, "tid": 1, "dur": 2769, "ts": 383, "ph": "X", "name": "model_run", "args": {}}


def test_nodes_are_counted_by_the_provider_that_executed_them() -> None:
    events = [SESSION, node("a", "CUDAExecutionProvider"), node("b", "CUDAExecutionProvider", index=1)]
    events.append(node("c", "CPUExecutionProvider", "Shape", 2))
    placement = placement_from_profile(json.dumps(events))
    assert [(p.device, p.device_kind, p.nodes) for p in placement.parts] == [
        ("CUDAExecutionProvider", DeviceKind.GPU, 2),
        ("CPUExecutionProvider", DeviceKind.CPU, 1),
    ]
    assert not placement.all_on(DeviceKind.GPU)


def test_a_node_that_ran_many_times_counts_once() -> None:
    placement = placement_from_profile(json.dumps([node("a", "CPUExecutionProvider")] * 5))
    assert placement.parts[0].nodes == 1


def test_unnamed_nodes_are_told_apart_by_their_index() -> None:
    events = [node("", "CPUExecutionProvider", "Mul", index) for index in range(3)]
    assert placement_from_profile(json.dumps(events)).parts[0].nodes == 3


def test_a_profile_without_nodes_proves_nothing() -> None:
    placement = placement_from_profile(json.dumps([SESSION]))
    assert placement.parts == ()
    assert not placement.all_on(DeviceKind.CPU)
    assert "no node" in placement.source


@pytest.mark.parametrize("text", ["", "[", '[{"cat": "Node"', '{"cat": "Node"}', "[1]"])
def test_a_profile_cut_short_is_an_error_and_not_an_empty_placement(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        placement_from_profile(text)


def test_a_provider_that_may_drive_a_cpu_is_not_counted_as_a_gpu() -> None:
    placement = placement_from_assignment([("WebGpuExecutionProvider", 100), ("CPUExecutionProvider", 3)])
    assert placement.parts[0].device_kind is DeviceKind.UNKNOWN
    assert not placement.all_on(DeviceKind.GPU)


def test_pieces_of_one_provider_are_added() -> None:
    placement = placement_from_assignment([("CPUExecutionProvider", 1)] * 104)
    assert placement.parts[0].nodes == 104


# --- messages; captured from ONNX Runtime 1.31.1 and 1.32.0 on x86-64 ---

IR_99 = (
    "[ONNXRuntimeError] : 1 : FAIL : Load model from /data/ir99.onnx failed:/onnxruntime_src/onnxruntime/core/graph/"
    "model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, const onnxruntime::PathString&, const onnxruntime::"
    "IOnnxRuntimeOpSchemaRegistryList*, const onnxruntime::logging::Logger&, const onnxruntime::ModelOptions&) "
    "Unsupported model IR version: 99, max supported IR version: 14\n"
)
NO_CUBLAS = (
    "\x1b[1;31m2026-12-01 04:43:36.568003792 [E:onnxruntime:Default, provider_bridge_ort.cc:2430 operator()] "
    "/onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:2043 onnxruntime::Provider& "
    "onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library /opt/venv/onnxruntime/"
    "capi/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object file: No such file "
    "or directory\n\x1b[m\n\x1b[0;93m2026-12-01 04:43:36.569347806 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:"
    "1295 CreateExecutionProviderFactoryInstance] Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA "
    "13.*. Please install all dependencies as mentioned in the GPU requirements page.\x1b[m\n"
)
NO_DEVICE = (
    "CUDA failure 100: no CUDA-capable device is detected ; GPU=0 ; hostname=orin ; file=/onnxruntime_src/onnxruntime/"
    "core/providers/cuda/cuda_execution_provider.cc ; line=280 ; expr=cudaSetDevice(info_.device_id);"
)


def test_the_cause_of_a_refused_load_is_one_clean_sentence() -> None:
    assert ort_errors.cause(IR_99) == "Unsupported model IR version: 99, max supported IR version: 14"


def test_the_missing_library_is_told_and_not_the_general_advice() -> None:
    assert ort_errors.provider_cause(NO_CUBLAS) == (
        "libonnxruntime_providers_cuda.so: libcublasLt.so.13: cannot open shared object file: No such file or directory"
    )
    assert "CUDA" in ort_errors.remedy(NO_CUBLAS)
    assert not ort_errors.is_no_device(NO_CUBLAS)


def test_a_machine_without_a_gpu_is_told_apart_from_a_broken_installation() -> None:
    assert ort_errors.cause(NO_DEVICE) == "CUDA failure 100: no CUDA-capable device is detected"
    assert ort_errors.is_no_device(NO_DEVICE)


def test_a_gpu_that_the_wheel_has_no_code_for_gets_its_own_remedy() -> None:
    assert "CMAKE_CUDA_ARCHITECTURES" in ort_errors.remedy("no kernel image is available for execution on the device")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Failed to allocate memory for requested buffer of size 8589934592", True),
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("CUDA failure 222: unsupported toolchain", False),
        ("Got invalid dimensions for input", False),
    ],
)
def test_a_lack_of_memory_is_recognised(text: str, expected: bool) -> None:
    assert ort_errors.is_out_of_memory(text) is expected


def test_nothing_on_stderr_is_no_cause() -> None:
    assert ort_errors.provider_cause("\n\x1b[m\n") == ""


@pytest.mark.parametrize(
    ("machine", "python", "l4t", "word"),
    [
        ("x86_64", (3, 11), None, "onnxruntime-gpu"),
        ("aarch64", (3, 10), 36, "jp6/cu126"),
        ("aarch64", (3, 12), 38, "CMAKE_CUDA_ARCHITECTURES"),
        ("aarch64", (3, 10), None, "Python 3.11"),
        ("riscv64", (3, 12), None, "cpu backend"),
    ],
)
def test_the_remedy_for_a_missing_provider_fits_the_machine(
    machine: str, python: tuple[int, int], l4t: int | None, word: str
) -> None:
    assert word in ort_errors.missing_provider_remedy("cuda", machine, python, l4t)
