"""Each row of the table fires on a symptom as users have reported it, and not on a near miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from probes.contract import Evidence, Fact, Finding, Status
from probes.diagnose import TABLE, Diagnosis, diagnose, diagnose_all, diagnoses, merged_facts

ORIN: dict[str, Fact] = {"is_jetson": True, "soc": "tegra234", "l4t": "36.4.3"}
THOR: dict[str, Fact] = {"is_jetson": True, "soc": "tegra264", "l4t": "38.4.0"}
NANO: dict[str, Fact] = {"is_jetson": True, "soc": "tegra210", "l4t": "32.7.1"}
PC: dict[str, Fact] = {"is_jetson": False}
NO_FILE = "cannot open shared object file: No such file or directory"
KERNEL_IMAGE = "CUDA error: no kernel image is available for execution on the device"
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"

# (start of the cause, subject, facts, text that fires it, near miss). A near miss is a text, or the same text on a
# device of other facts, or of another subject; it must not be explained by this row.
Near = str | dict[str, Fact] | tuple[str, str]
ROWS: list[tuple[str, str, dict[str, Fact], str, Near]] = [
    ("the library holds no code for this GPU: Thor", "onnxruntime/cuda", THOR, KERNEL_IMAGE, ORIN),
    ("the library holds no code for this GPU: wheels", "onnxruntime/cuda", ORIN, KERNEL_IMAGE, PC),
    (
        "the library holds no code for this GPU's",
        "cuda",
        PC,
        "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU",
        "cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE",
    ),
    (
        "the PTX was made by",
        "cuda",
        ORIN,
        "the provided PTX was compiled with an unsupported toolchain.",
        "a PTX JIT compilation failed",
    ),
    (
        "the kernel's NVIDIA driver and the libcuda",
        "cuda",
        ORIN,
        "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
        TOO_OLD,
    ),
    ("this build wants a newer CUDA driver than this L4T", "onnxruntime/cuda", NANO, TOO_OLD, PC),
    (
        "this build wants a newer CUDA driver than the one",
        "cuda",
        PC,
        "CUDA driver version is insufficient for CUDA runtime version",
        "CUDA driver version 13.0",
    ),
    (
        "Thor's architecture is",
        "tensorrt",
        THOR,
        "nvcc fatal : Unsupported gpu architecture 'compute_110'",
        "nvcc fatal : Unsupported gpu architecture 'compute_87'",
    ),
    (
        "this user can't open /dev/nvmap",
        "cuda",
        ORIN,
        "NvRmMemInitNvmap failed with Permission denied",
        "NvRmMemMap failed",
    ),
    ("CUDA can't open its devices", "cuda", ORIN, "cuInit: CUDA_ERROR_NOT_SUPPORTED (801)", PC),
    (
        "the library is an empty placeholder",
        "tensorrt",
        ORIN,
        "OSError: /usr/lib/aarch64-linux-gnu/libnvinfer.so.8: file too short",
        "model.onnx: file too short",
    ),
    ("JetPack 4's containers take", "onnxruntime/cuda", NANO, f"OSError: libcurand.so.10: {NO_FILE}", ORIN),
    (
        "the container engine knows no CDI",
        "cuda",
        ORIN,
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "resolved CDI devices nvidia.com/gpu=all",
    ),
    (
        "the CDI generator asked NVML",
        "container",
        ORIN,
        "failed to create device discoverer: error getting GPU device minor number: Not Supported",
        "GPU device minor number: 0",
    ),
    (
        "TensorRT needs the DLA compiler",
        "tensorrt",
        ORIN,
        f"ImportError: libnvdla_compiler.so: {NO_FILE}",
        f"ImportError: libnvdla_runtime.so: {NO_FILE}",
    ),
    ("the program was built for another TensorRT", "tensorrt", ORIN, f"libnvinfer_plugin.so.8: {NO_FILE}", PC),
    (
        "the program was built for another cuDNN",
        "onnxruntime/cuda",
        ORIN,
        f"ImportError: libcudnn.so.8: {NO_FILE}",
        f"ImportError: libcudnn.so.8: {NO_FILE}".replace("cudnn", "cudart"),
    ),
    (
        "the wheel needs a CUDA library that JetPack",
        "onnxruntime/cuda",
        ORIN,
        f"ImportError: libcudss.so.0: {NO_FILE}",
        "libcudss.so.0 was loaded",
    ),
    ("on a Jetson TensorRT's Python module", "tensorrt", ORIN, "No module named 'tensorrt'", PC),
    (
        "the TensorRT engine was built by another version",
        "tensorrt",
        ORIN,
        "The engine plan file is not compatible with this version of TensorRT, expecting library version 10.3 got 8.6",
        "the engine plan file was written",
    ),
    (
        "the TensorRT engine was built on another GPU",
        "tensorrt",
        ORIN,
        "The engine plan file is generated on an incompatible device, expecting compute 8.7 got compute 7.2",
        "The engine plan file is generated on this device",
    ),
    (
        "a module that was built against NumPy 1",
        "opencl",
        ORIN,
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.1 as it may crash.",
        "No module named 'numpy.core.multiarray_x'",
    ),
    (
        "the binary was built for a newer Linux",
        "onnxruntime/cpu",
        NANO,
        "/lib/aarch64-linux-gnu/libc.so.6: version `GLIBC_2.28' not found (required by x.so)",
        "version `CXXABI_1.3.9' not found",
    ),
    (
        "on aarch64 with glibc before 2.32",
        "onnxruntime/cpu",
        NANO,
        "libgomp.so.1: cannot allocate memory in static TLS block",
        "libgomp.so.1: cannot allocate memory",
    ),
    (
        "the library was built for the processor of another machine",
        "llama_cpp/cpu",
        PC,
        "died by SIGILL in decode (llama_cpp/_internals.py:318)",
        ("onnxruntime/cpu", "died by SIGILL in run (onnxruntime/capi.py:1)"),
    ),
    ("OpenBLAS took this processor", "onnxruntime/cpu", NANO, "died by SIGILL in <module> (numpy/__init__.py:1)", PC),
    (
        "the library was built for a newer processor",
        "onnxruntime/cpu",
        PC,
        "died by SIGILL in run (onnxruntime/capi.py:1)",
        "died by SIGSEGV in run (onnxruntime/capi.py:1)",
    ),
    (
        "CPU and GPU share one memory here",
        "llama_cpp/cuda",
        ORIN,
        "used 2100 MiB of memory, 2048 MiB are allowed; killed",
        PC,
    ),
    (
        "the kernel could not hand out one large block",
        "llama_cpp/cuda",
        ORIN,
        "NvMapMemAllocInternalTagged: 1075072515 error 12",
        "NvMapMemAllocInternalTagged: 1075072515 error 4",
    ),
    ("the GPU did not start", "cuda", ORIN, "NvRmGpuLibOpen failed, error=4", "NvRmGpuLibOpen was called"),
    ("the NVIDIA Vulkan driver's manifest", "vulkan", THOR, "vkCreateInstance: VK_ERROR_INCOMPATIBLE_DRIVER", PC),
    (
        "the driver was led to an X server",
        "vulkan",
        NANO,
        'Xlib:  extension "NV-GLX" missing on display "localhost:10.0".',
        ("cuda", "ERROR_INITIALIZATION_FAILED"),
    ),
    ("NVIDIA ships no OpenCL", "opencl", ORIN, "clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR", PC),
    (
        "WebGPU stands on Vulkan or OpenGL ES",
        "webgpu",
        PC,
        "wgpu-native found no adapter, neither by Vulkan nor by OpenGL ES",
        "wgpu-native found no adapter; VK_DRIVER_FILES=/nonexistent.json may hide the drivers",
    ),
    ("PyPI's onnxruntime for aarch64", "onnxruntime/cuda", ORIN, "onnxruntime 1.32.0 has no CUDAExecutionProvider", PC),
    (
        "llama-cpp-python has no aarch64",
        "llama_cpp/cuda",
        ORIN,
        "this llama.cpp build has no CUDA backend; it has CPU",
        PC,
    ),
    ("this torch is a CPU build", "torch", ORIN, "AssertionError: Torch not compiled with CUDA enabled", PC),
    (
        "this nvcc does not know",
        "cuda_runtime",
        NANO,
        "nvcc fatal : Unsupported gpu architecture 'compute_87'",
        "nvcc fatal : Unsupported gpu architecture 'compute_110'",
    ),
    ("Ollama took the build", "ollama", ORIN, "no compatible GPUs were discovered", "a GPU was detected"),
    (
        "this build of MNN",
        "mnn/cuda",
        ORIN,
        "Can't Find type=2 backend, use 0 instead",
        "Can't Find type=conv operator",
    ),
    (
        "the GPU road of LiteRT",
        "litert/gpu",
        ORIN,
        "Failed to load OpenCL library with dlopen: libOpenCL.so",
        "Failed to load the model with dlopen",
    ),
    (
        "the graph runs on the CPU",
        "mediapipe/gpu",
        ORIN,
        "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.",
        ("onnxruntime/cpu", "INFO: Created TensorFlow Lite XNNPACK delegate for CPU."),
    ),
    (
        "the kernel ran and computed wrong numbers",
        "vulkan",
        ORIN,
        "Orin gave a wrong answer: 5 of 1048576 numbers right, number 3 is 0, not 7, sha256 00",
        "Orin failed: 1048576 of 1048576 numbers right",
    ),
    ("there is no DLA here", "tensorrt", ORIN, "DLA core 0 is not available", "DLA core 0 is available"),
    (
        "the container was started without",
        "onnxruntime/cuda",
        {**ORIN, "in_container": True},
        f"libcuda.so.1: {NO_FILE}",
        ORIN,
    ),
    ("only L4T was flashed", "onnxruntime/cuda", ORIN, f"libcudart.so.12: {NO_FILE}", NANO),
    (
        "pip brought CUDA libraries for servers",
        "onnxruntime/cuda",
        ORIN,
        "error in /opt/venv/lib/python3.10/site-packages/nvidia/cublas/lib/libcublas.so.12",
        THOR,
    ),
    (
        "Docker 28 and later",
        "container",
        ORIN,
        "failed to set up container networking: driver failed programming external connectivity",
        "failed to set up container storage",
    ),
    ("NVIDIA's driver was not taken", "vulkan", ORIN, "only a software device (llvmpipe) answered; no GPU", PC),
    (
        "old L4T drivers crash",
        "ncnn/vulkan",
        ORIN,
        "died by SIGSEGV in load (ncnn.py:1)",
        ("ncnn/cpu", "died by SIGSEGV in load (ncnn.py:1)"),
    ),
    ("Tegra's NVML answers", "tenants", ORIN, "pynvml.NVMLError_NotSupported: Not Supported", PC),
    (
        "the supply or the module's limit",
        "power",
        ORIN,
        "System throttled due to over-current.",
        "System throttled due to temperature.",
    ),
    (
        "jetson-stats' service does not run",
        "jetson_stats",
        ORIN,
        "JtopException: The jtop.service is not active. Please run: sudo systemctl restart jtop.service",
        "The jtop.service is active",
    ),
    ("this user is not in the group jtop", "jetson_stats", ORIN, "I can't access jtop.service", "I see jtop.service"),
    (
        "container packages were upgraded",
        "container",
        ORIN,
        "error adding seccomp filter rule for syscall clone3: permission denied",
        "error adding seccomp filter rule for syscall openat: permission denied",
    ),
    ("nvcc is not in PATH", "cuda_runtime", ORIN, "sh: 1: nvcc: not found", "sh: 1: ptxas: not found"),
    (
        "the block is switched off",
        "thermal",
        ORIN,
        "gpu-thermal: Resource temporarily unavailable",
        ("cuda", "Resource temporarily unavailable"),
    ),
    (
        "the script of nvidia-l4t-bootloader",
        "packages",
        ORIN,
        "half-configured: nvidia-l4t-bootloader, nvidia-l4t-kernel and 6 more; unpacked: nvidia-l4t-jetson-io",
        "half-configured: nvidia-l4t-kernel; on hold: nvidia-l4t-bootloader",
    ),
    (
        "apt removed it",
        "packages",
        ORIN,
        "missing: nvidia-l4t-cuda (libcuda; it was removed)",
        "missing: nvidia-l4t-cuda (libcuda)",
    ),
    (
        "an upgrade moved only a part",
        "packages",
        ORIN,
        "packages of more than one L4T: nvidia-l4t-core 36.4.3, but nvidia-l4t-cuda 36.4.7",
        "held at another L4T than nvidia-l4t-core 36.4.3: nvidia-l4t-kernel 36.5.0",
    ),
    (
        "makers of carrier boards hold these",
        "packages",
        ORIN,
        "held at another L4T than nvidia-l4t-core 36.5.2: nvidia-l4t-kernel 36.5.0; on hold: nvidia-l4t-kernel",
        "on hold: libvulkan1; unpacked: nvidia-l4t-kernel",
    ),
    (
        "Docker 28 and later need the kernel module iptable_raw, which this",
        "packages",
        ORIN,
        "on hold: docker-ce",
        THOR,
    ),
]

# The traps that people fall into on a Jetson, by their number in our list: the cause that is told, or why none can be.
TRAPS: dict[int, tuple[str, ...]] = {
    1: ("PyPI's onnxruntime for aarch64",),
    2: ("this torch is a CPU build", "this build wants a newer CUDA driver than this L4T"),
    3: ("the library holds no code for this GPU: Thor", "the library holds no code for this GPU: wheels"),
    4: ("Thor's architecture is",),
    5: ("this nvcc does not know",),
    6: ("the kernel ran and computed wrong numbers",),
    7: ("the PTX was made by",),
    8: ("this build wants a newer CUDA driver than this L4T",),
    9: ("Ollama took the build",),
    10: ("llama-cpp-python has no aarch64",),
    11: ("this build of MNN",),
    12: ("the GPU road of LiteRT",),
    13: ("the graph runs on the CPU",),
    14: ("NVIDIA ships no OpenCL",),
    15: ("the program was built for another TensorRT",),
    16: ("the program was built for another cuDNN",),
    17: ("the wheel needs a CUDA library that JetPack",),
    18: ("JetPack 4's containers take",),
    19: ("the library is an empty placeholder",),
    20: ("the TensorRT engine was built by another version",),
    21: ("the TensorRT engine was built on another GPU",),
    22: ("on a Jetson TensorRT's Python module",),
    23: ("a module that was built against NumPy 1",),
    24: ("the binary was built for a newer Linux",),
    25: ("TensorRT needs the DLA compiler",),
    26: ("there is no DLA here",),
    27: ("CUDA can't open its devices",),
    28: ("this user can't open /dev/nvmap",),
    29: (),  # a presence that proves nothing: no probe here takes one for a proof
    30: ("the container was started without",),
    31: ("the container engine knows no CDI",),
    32: ("Docker 28 and later", "Docker 28 and later need the kernel module iptable_raw, which this"),
    33: ("NVIDIA's driver was not taken",),
    34: ("the driver was led to an X server",),
    35: ("the NVIDIA Vulkan driver's manifest",),
    36: ("old L4T drivers crash",),
    37: ("the kernel could not hand out one large block",),
    38: ("CPU and GPU share one memory here",),
    39: ("Tegra's NVML answers",),
    40: ("the supply or the module's limit",),
    41: ("jetson-stats' service does not run", "this user is not in the group jtop"),
    42: ("on aarch64 with glibc before 2.32",),
    43: ("OpenBLAS took this processor",),
    44: ("the GPU did not start",),
    45: ("the block is switched off",),
    46: (),  # sensors are found by their name, never by number
    47: ("container packages were upgraded", "an upgrade moved only a part"),
    48: ("nvcc is not in PATH",),
    49: ("only L4T was flashed",),
    50: ("pip brought CUDA libraries for servers",),
    51: (),  # of whoever parses nvidia-smi's table; here its CSV is read, each field optional
    52: (),  # a matter of measuring, not of what works
    53: (),  # likewise
}


def broken(subject: str, reason: str = "it failed", **more: object) -> Finding:
    return Finding(subject=subject, layer=2, status=Status.BROKEN, reason=reason, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cause", "subject", "facts", "fires", "near"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_explains_its_symptom_and_not_a_near_miss(
    cause: str, subject: str, facts: dict[str, Fact], fires: str, near: Near
) -> None:
    explained = diagnose(broken(subject, fires), facts)
    assert str(explained.facts["cause"]).startswith(cause)
    assert explained.remedy
    if isinstance(near, dict):
        miss = diagnose(broken(subject, fires), near)
    elif isinstance(near, tuple):
        miss = diagnose(broken(*near), facts)
    else:
        miss = diagnose(broken(subject, near), facts)
    assert not str(miss.facts.get("cause", "")).startswith(cause)


def test_every_row_of_the_table_is_tested_and_names_its_source() -> None:
    rows = diagnoses()
    assert len(rows) == len(ROWS)
    for row, (cause, *_) in zip(rows, ROWS, strict=True):
        assert row.cause.startswith(cause)
        assert row.source


def test_every_known_trap_is_accounted_for() -> None:
    assert sorted(TRAPS) == list(range(1, 54))
    told = {row[0] for row in ROWS}
    assert [start for starts in TRAPS.values() for start in starts if start not in told] == []


def test_a_software_device_where_a_gpu_should_answer_is_explained() -> None:
    works = msgspec.structs.replace(broken("vulkan", "only a software device (llvmpipe)"), status=Status.WORKS)
    explained = diagnose(works, ORIN)
    assert explained.status is Status.WORKS
    assert str(explained.facts["cause"]).startswith("NVIDIA's driver was not taken")
    assert explained.remedy


def test_what_the_check_knew_itself_is_kept() -> None:
    finding = broken("opencl", "PLATFORM_NOT_FOUND_KHR", remedy="do this", facts={"cause": "mine", "number": 1})
    explained = diagnose(finding, ORIN)
    assert explained.remedy == "do this"
    assert explained.facts == {"cause": "mine; NVIDIA ships no OpenCL with L4T", "number": 1}


def test_evidence_is_searched_as_well_as_the_reason() -> None:
    evidence = (Evidence(executed="the check's stderr", value=f"x\n{KERNEL_IMAGE}\ny"),)
    assert "cause" in diagnose(broken("cuda", evidence=evidence), PC).facts


def test_what_works_or_is_not_known_comes_back_unchanged() -> None:
    evidence = (Evidence(executed="stderr", value=KERNEL_IMAGE),)
    works = msgspec.structs.replace(broken("cuda", "", evidence=evidence), status=Status.WORKS)
    unknown = broken("cuda", "something new")
    assert diagnose(works, ORIN) is works
    assert diagnose(unknown, ORIN) is unknown


def test_a_check_that_has_found_the_cause_itself_is_not_told_another() -> None:
    reason = "OCL_ICD_VENDORS=/x hides every OpenCL driver (clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR)"
    finding = broken("opencl", reason)
    assert diagnose(finding, ORIN) is finding


def test_a_condition_on_a_fact_that_is_not_known_is_not_fulfilled() -> None:
    row = Diagnosis(symptom="x", facts={"is_jetson": False}, cause="c", remedy="r", source="s")
    assert not row.fits(broken("cuda", "x"), {})
    assert not row.fits(broken("cuda", "x"), {"is_jetson": 0})
    assert row.fits(broken("cuda", "x"), {"is_jetson": False})


def test_the_device_s_facts_come_from_the_same_survey() -> None:
    hardware = Finding(subject="hardware", layer=0, status=Status.WORKS, facts={"is_jetson": True, "serial": None})
    other = Finding(subject="memory", layer=0, status=Status.WORKS, facts={"is_jetson": False})
    assert merged_facts([hardware, other]) == {"is_jetson": True}
    explained = diagnose_all([hardware, broken("opencl", "PLATFORM_NOT_FOUND_KHR")])
    assert explained[1].facts["cause"] == "NVIDIA ships no OpenCL with L4T"


def test_a_wrong_key_in_a_table_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(TABLE.read_text(encoding="utf-8").replace("remedy =", "remedie =", 1), encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match="remedie"):
        diagnoses(table)


def test_importing_reads_no_table_and_no_toml_library() -> None:
    code = "import sys, probes.diagnose; print('tomllib' in sys.modules or 'tomli' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TABLE.parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
