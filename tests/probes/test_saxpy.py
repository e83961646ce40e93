"""The known answer, and the judgement of what devices made of it."""

from __future__ import annotations

from array import array

import pytest

from probes import saxpy
from probes.contract import Device, DeviceKind, Evidence, Status

GPU = Device(index=1, name="NVIDIA Tegra Orin (nvgpu)", kind=DeviceKind.GPU)
CPU = Device(index=0, name="llvmpipe (LLVM 15.0.7, 128 bits)", kind=DeviceKind.CPU)


@pytest.fixture(scope="module")
def given() -> saxpy.Problem:
    return saxpy.problem()


def answer(given: saxpy.Problem, device: Device, result: bytes) -> Evidence:
    return saxpy.compared(given, device, result, 0.001, "device")


def altered(given: saxpy.Problem, index: int, value: float) -> bytes:
    numbers = array("f", given.expected)
    numbers[index] = value
    return numbers.tobytes()


def test_the_known_answer_is_the_formula_worked_out_number_by_number(given: saxpy.Problem) -> None:
    x, y = array("f", given.x), array("f", given.y)
    worked_out = array("f", (saxpy.FACTOR * a + b for a, b in zip(x, y, strict=True)))
    assert len(worked_out) == saxpy.COUNT
    assert worked_out.tobytes() == given.expected


def test_every_value_is_exact_in_float32(given: saxpy.Problem) -> None:
    assert max(array("f", given.expected)) < 2**24
    assert len(set(array("f", given.expected))) == saxpy.COUNT


def test_a_kernel_that_did_not_run_is_wrong_in_every_number(given: saxpy.Problem) -> None:
    assert saxpy.describe(given.y, given.expected).startswith("0 of 1048576 numbers right")
    assert saxpy.describe(given.x, given.expected).startswith("0 of 1048576 numbers right")


def test_one_wrong_number_in_a_million_is_found_and_named(given: saxpy.Problem) -> None:
    text = saxpy.describe(altered(given, saxpy.COUNT - 1, 0.0), given.expected)
    assert text.startswith("1048575 of 1048576 numbers right, number 1048575 is 0, not 3.14573e+06")


def test_not_a_number_is_wrong(given: saxpy.Problem) -> None:
    assert "number 7 is nan" in saxpy.describe(altered(given, 7, float("nan")), given.expected)


def test_too_few_bytes_are_wrong(given: saxpy.Problem) -> None:
    assert saxpy.describe(given.expected[:-4], given.expected) == "4194300 bytes instead of 4194304"


def test_a_right_gpu_works_without_a_reason(given: saxpy.Problem) -> None:
    assert saxpy.verdict([answer(given, GPU, given.expected)]) == (Status.WORKS, "")


def test_a_wrong_answer_is_broken(given: saxpy.Problem) -> None:
    status, reason = saxpy.verdict([answer(given, GPU, altered(given, 0, 1.0))])
    assert status is Status.BROKEN
    assert "NVIDIA Tegra Orin (nvgpu) gave a wrong answer: 1048575 of 1048576" in reason


def test_a_kernel_that_failed_is_broken_in_the_words_of_the_api(given: saxpy.Problem) -> None:
    status, reason = saxpy.verdict([saxpy.failed(given, GPU, "VkErrorDeviceLost")])
    assert status is Status.BROKEN
    assert reason == "saxpy, 1048576 floats: NVIDIA Tegra Orin (nvgpu) failed: VkErrorDeviceLost"


def test_a_software_device_works_but_says_that_there_is_no_gpu(given: saxpy.Problem) -> None:
    status, reason = saxpy.verdict([answer(given, CPU, given.expected)], "nvidia_icd.json: libx.so: missing")
    assert status is Status.WORKS
    assert reason == f"only a software device ({CPU.name}) answered; no GPU; nvidia_icd.json: libx.so: missing"


def test_a_failing_second_gpu_is_named_beside_a_working_one(given: saxpy.Problem) -> None:
    other = Device(index=2, name="Other GPU", kind=DeviceKind.GPU)
    status, reason = saxpy.verdict([answer(given, GPU, given.expected), saxpy.failed(given, other, "lost")])
    assert status is Status.WORKS
    assert "Other GPU failed: lost" in reason


def test_software_devices_are_left_aside_when_there_is_hardware() -> None:
    assert saxpy.candidates([CPU, GPU]) == (GPU,)
    assert saxpy.candidates([CPU]) == (CPU,)


@pytest.mark.parametrize(
    "name", ["llvmpipe (LLVM 15)", "SwiftShader Device", "Virtio-GPU Venus (llvmpipe)", "softpipe"]
)
def test_a_software_device_never_counts_as_a_gpu_whatever_the_api_calls_it(name: str) -> None:
    assert saxpy.kind_of(DeviceKind.GPU, name) is DeviceKind.CPU


def test_a_gpu_stays_a_gpu() -> None:
    assert saxpy.kind_of(DeviceKind.GPU, "NVIDIA Tegra Orin (nvgpu)") is DeviceKind.GPU
