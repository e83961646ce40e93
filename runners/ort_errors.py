"""ONNX Runtime's messages made readable: its source lines, signatures and time stamps cut. Pure."""

from __future__ import annotations

import re

CAUSE_CHARACTERS = 300

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LOG_HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[[A-Z]:[^\]]*\] ")
_LOAD_HEAD = re.compile(r"^Load model from .*? failed[:.] ?")
_SOURCE_LINE = re.compile(r"/\S+\.(?:cc|h|cpp|cu|cuh|hpp):\d+ (?:[^()]*(?:operator\(\))?\([^()]*\)(?: const)? )?")
_CUDA_TAIL = re.compile(r" ?; ?GPU=.*", re.DOTALL)
_LIBRARY_HEAD = re.compile(r"Failed to load library \S*/(\S+) with error:\s*")

_OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|Failed to allocate memory|CUDA failure 2\b|CUBLAS_STATUS_ALLOC_FAILED", re.I
)
_NO_DEVICE = re.compile(
    r"libcuda\.so\.1: cannot open|no CUDA-capable device|CUDA failure 100\b|libnvrm_gpu\.so: cannot open",
    re.I,
)

_DEVICE_FAILED = re.compile(r"\b(?:CUDA|CUDNN|CUBLAS|CUFFT) failure\b|\bTensorRT EP\b")

# symptom -> remedy; the first that matches is told
_REMEDIES = (
    (
        r"no kernel image is available",
        "this build has no code for this GPU: install one made for it, or build ONNX Runtime with "
        "CMAKE_CUDA_ARCHITECTURES=87 (Orin) or 110 (Thor)",
    ),
    (
        r"libcuda\.so\.1: cannot open|no CUDA-capable device|driver version is insufficient",
        "install the NVIDIA driver (on a Jetson: L4T; in a container: start it with the NVIDIA runtime)",
    ),
    (r"libnvinfer", "install the TensorRT release that this build names, or use the cuda backend"),
    (
        r"lib(?:cudart|cublas\w*|cufft|curand|cudnn\w*|nvrtc)\.so\.(\d+)",
        "install the CUDA and cuDNN releases that this build names, or an onnxruntime-gpu made for the CUDA that "
        "is installed",
    ),
    (
        r"CUDA failure 222\b|unsupported toolchain",
        "this build is newer than the driver: install one for its CUDA version",
    ),
)


def cause(text: str) -> str:
    """The cause that ONNX Runtime gives, in one line of at most `CAUSE_CHARACTERS`.

    Args:
        text: an exception's message, or one line of the log on stderr.

    Returns: "" for a text without content.
    """
    text = _COLOUR.sub("", text)
    text = _LOG_HEAD.sub("", _STATUS.sub("", text))
    text = _LOAD_HEAD.sub("", text.strip())
    text = _CUDA_TAIL.sub("", _SOURCE_LINE.sub("", text))
    text = " ".join(_LIBRARY_HEAD.sub(r"\1: ", text).split()).rstrip(".")
    return text if len(text) <= CAUSE_CHARACTERS else text[: CAUSE_CHARACTERS - 1] + "…"


def provider_cause(stderr: str) -> str:
    """Why a provider could not be created, from what was written to stderr meanwhile; "" when nothing was.

    The line that names the missing library or the CUDA error says more than the advice that follows it.
    """
    lines = [found for line in _COLOUR.sub("", stderr).splitlines() if (found := cause(line))]
    telling = [line for line in lines if re.search(r"cannot open|CUDA failure|undefined symbol|error:", line)]
    return (telling or lines or [""])[0]


def remedy(text: str) -> str:
    """What to do about a cause, or "" when it is not known."""
    return next((advice for symptom, advice in _REMEDIES if re.search(symptom, text)), "")


def is_out_of_memory(text: str) -> bool:
    """Whether the cause is a lack of memory, on the device or the host."""
    return bool(_OUT_OF_MEMORY.search(text))


def is_no_device(text: str) -> bool:
    """Whether the cause is that there is no NVIDIA GPU or driver at all, so that nothing here is broken."""
    return bool(_NO_DEVICE.search(text))


def is_device_failure(text: str) -> bool:
    """Whether the GPU's libraries failed, so that the model is not to blame."""
    return bool(_DEVICE_FAILED.search(text))


def missing_provider_remedy(backend: str, machine: str, python: tuple[int, int], l4t_major: int | None) -> str:
    """What to install when the build of ONNX Runtime has no such provider.

    Args:
        backend: "cuda" or "tensorrt".
        machine: "x86_64", "aarch64", ... as `platform.machine()` says.
        python: major and minor version.
        l4t_major: 36 for JetPack 6, 38 and 39 for JetPack 7; None for no Jetson.

    Source: the PyPI wheels of onnxruntime-gpu 1.31.1 (their fatbin headers); microsoft/onnxruntime#20503.
    """
    if machine == "x86_64":
        return "pip uninstall onnxruntime, then pip install onnxruntime-gpu with the CUDA and cuDNN that it names"
    if machine != "aarch64":
        return f"there is no onnxruntime-gpu for {machine}: use the cpu backend"
    if l4t_major is None:
        need = "" if python >= (3, 11) else " (needs Python 3.11 or newer)"
        tensorrt = (
            "; it has no TensorRT provider, for which ONNX Runtime must be built" if backend == "tensorrt" else ""
        )
        return f"pip uninstall onnxruntime, then pip install onnxruntime-gpu{need}{tensorrt}"
    if l4t_major <= 36:
        return (
            "install the onnxruntime-gpu wheel of the Jetson AI Lab index for this JetPack (JetPack 6: jp6/cu126, "
            "Python 3.10) in place of onnxruntime; the wheels on PyPI are for CUDA 13, which JetPack 6 has not"
        )
    return (
        "build ONNX Runtime with CMAKE_CUDA_ARCHITECTURES=87 (Orin) or 110 (Thor): the aarch64 wheel on PyPI has "
        "code for sm_89, 90, 120 and 121 only, and no TensorRT provider"
    )
