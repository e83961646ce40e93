"""cuDNN: the library loads, makes a handle on the first GPU and adds two tensors there, each number compared.

Loading and versions need no GPU. Adding has not been seen working yet: none was at hand.

Source: cudnn.h of cuDNN 7.6 to 9: cudnnAddTensor and its descriptors have kept their arguments since 4.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from contextlib import ExitStack
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_void_p

from probes import cuda_libraries as libraries
from probes import l4t, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status
from probes.cuda_libraries import Gpu, Loaded, call
from probes.cudadriver import CudaError, SymbolMissing
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "libcuda", "cuda_libraries", "cudnn_libraries", "python")
USES_GPU = True
COST_S = 4.0
DEADLINE_S = 60.0
MEMORY_MIB = 2048  # the engines map hundreds of megabytes

SONAMES = ("9", "8", "7")
WIDTH = 256
NCHW, FLOAT = 0, 0
PARTS = ("libcudnn_ops", "libcudnn_ops_infer")  # cuDNN 9, cuDNN 8: where the code for the GPU lies
# Source: cudnnStatus_t of cuDNN 8 and of 9, which gave the numbers new names and kept 1
STATUS_NOT_INITIALIZED = (1, 1001)
_finding = functools.partial(saxpy.finding, "cudnn", LAYER)


def parse_version(number: int) -> str | None:
    """The number of cudnnGetVersion in words: "8.9.4" of 8904, "9.3.0" of 90300; None for what is no version."""
    if number >= 90000:
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}" if number >= 1000 else None


def parse_cudart(number: int) -> str | None:
    """The number of cudnnGetCudartVersion: "12.6" of 12060; None for what is no version."""
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else None


def soname_major(said: str) -> str | None:
    """The major version that a loader misses: "8" in "libcudnn.so.8: cannot open shared object file"."""
    match = re.search(r"libcudnn\w{0,64}\.so\.(\d{1,3})\b", said)
    return match[1] if match else None


def problem() -> saxpy.Problem:
    """The sum x + 2y of tensors of `WIDTH`, whole numbers below 2048: exact in half precision too."""
    return saxpy.sum_of(range(1, WIDTH + 1), range(3 * WIDTH, 2 * WIDTH, -1), b=2)


def add(library: ctypes.CDLL, gpu: Gpu) -> tuple[bytes, float]:
    """Compute y = x + 2y on the first GPU, twice: the second time is timed, since the first loads code.

    Returns: float32, and seconds between two events of the GPU.

    Raises:
        CudaError: the driver or cuDNN refused; cuDNN's numbers are its own.
        SymbolMissing: this is no cuDNN.
    """
    assert gpu.driver is not None
    given = problem()
    handle, descriptor = c_void_p(), c_void_p()
    with ExitStack() as stack:
        stack.enter_context(gpu.driver.context(0))
        dx, dy = (stack.enter_context(gpu.driver.buffer(len(given.x))) for _ in range(2))
        gpu.driver.upload(dx, given.x)
        gpu.driver.upload(dy, given.y)
        call(library, "cudnnCreate", byref(handle))
        call(library, "cudnnCreateTensorDescriptor", byref(descriptor))
        shape = [c_int(number) for number in (NCHW, FLOAT, 1, 1, 1, WIDTH)]
        call(library, "cudnnSetTensor4dDescriptor", descriptor, *shape)
        a, b = c_float(given.a), c_float(given.b)

        def launch() -> None:
            call(library, "cudnnAddTensor", handle, byref(a), descriptor, dx, byref(b), descriptor, dy)

        launch()
        gpu.driver.upload(dy, given.y)  # the sum lies where the second input was
        elapsed_s = gpu.driver.timed(launch)
        answer = gpu.driver.download(dy, len(given.y))
        call(library, "cudnnDestroyTensorDescriptor", descriptor)
        call(library, "cudnnDestroy", handle)
    return answer, elapsed_s


def error_text(library: ctypes.CDLL, error: CudaError) -> str:
    """What cuDNN calls the number of a call of its own; the error as it is for one of the driver's."""
    if not error.call.startswith("cudnn"):
        return str(error)
    try:
        function = library.cudnnGetErrorString
    except AttributeError:
        return str(error)
    function.restype = c_char_p
    words = function(c_int(error.number))
    return f"{error.call}: {words.decode('utf-8', 'replace') if words else 'cuDNN'} ({error.number})"


def judge_not_loaded(loaded: Loaded, is_jetson: bool, in_container: bool) -> tuple[Status, str, str]:
    """Why there is no cuDNN: (status, reason, remedy)."""
    if any(word in loaded.problem for word in ("file too short", "invalid ELF header")) and is_jetson and in_container:
        reason = f"{loaded.problem}: a placeholder that the NVIDIA container runtime would have covered"
        return Status.ABSENT, reason, "start the container with --runtime nvidia"
    if loaded.files:
        remedy = "reinstall cuDNN, of the version that belongs to this CUDA"
        return Status.BROKEN, f"cuDNN is there ({loaded.files[0]}), but does not load: {loaded.problem}", remedy
    if is_jetson:
        return Status.ABSENT, loaded.problem, "sudo apt install nvidia-jetpack, which brings the release's own cuDNN"
    return (
        Status.ABSENT,
        loaded.problem,
        "with an NVIDIA GPU: install cuDNN for its CUDA; without one there is nothing to do",
    )


def read_versions(library: ctypes.CDLL) -> tuple[str | None, str | None]:
    """(cuDNN's version, the CUDA it was made for); None for what it does not tell.

    Raises:
        SymbolMissing: this is no cuDNN.
    """
    numbers = []
    for name in ("cudnnGetVersion", "cudnnGetCudartVersion"):
        function = libraries.symbol(library, name)
        function.restype = c_size_t  # type: ignore[attr-defined]  # a ctypes function, typed as what it is called for
        numbers.append(int(function()))
    return parse_version(numbers[0]), parse_cudart(numbers[1])


def judge_failed(said: str, number: int | None, cuda: str | None, driver: str | None) -> tuple[str, str]:
    """Why adding failed: (reason, remedy). A cuDNN for a newer CUDA can't initialise on an older driver."""
    if libraries.needs_newer_major(cuda, driver):  # within a major, older drivers serve newer libraries
        reason = f"{said}; this cuDNN was made for CUDA {cuda}, the driver supports {driver}"
        return reason, "install the cuDNN of the driver's CUDA: on a Jetson the one of its JetPack"
    if number in STATUS_NOT_INITIALIZED:
        return said, "often too little memory for the GPU: free some; on a Jetson CPU and GPU share it"
    return said, ""


def _execute(host: Host, library: ctypes.CDLL, gpu: Gpu, facts: dict[str, Fact]) -> Finding:
    try:
        version, cuda = read_versions(library)
    except SymbolMissing as error:
        return _finding(Status.BROKEN, f"{error}: no cuDNN, or a placeholder", facts=facts)
    facts["cudnn_built_for_cuda"] = cuda
    tell = functools.partial(_finding, version=version or "")
    if gpu.driver is None or gpu.info is None:
        reason = f"cuDNN {version} loads, but CUDA does not start: {gpu.problem}"
        return tell(Status.UNKNOWN, reason, "see the finding about cuda", facts)
    try:
        with witness.Watch(host) as watch:
            answer, elapsed_s = add(library, gpu)
    except CudaError as error:
        return tell(Status.BROKEN, *judge_failed(error_text(library, error), error.number, cuda, gpu.version), facts)
    except SymbolMissing as error:
        return tell(Status.BROKEN, str(error), "", facts)
    given = problem()
    name = f"cudnnAddTensor, {WIDTH} floats"
    seen: Evidence = libraries.evidence(name, gpu.info, answer, given.expected, elapsed_s)
    said = watch.witnesses((seen,), (os.getpid(),), witness.on_cpu(given, (seen,)))
    device = Device(index=gpu.info.index, name=gpu.info.name, kind=DeviceKind.GPU, vendor="NVIDIA")
    status = Status.WORKS if seen.is_right else Status.BROKEN
    reason = "" if seen.is_right else f"cuDNN answered wrongly: {seen.value}"
    return tell(status, reason, "", facts, devices=(device,), evidence=(seen,), witnesses=said)


def _code_file(host: Host) -> str | None:
    """The part of cuDNN with its code for the GPU: beside the library that was loaded, else where one is found."""
    loaded = libraries.loaded_path(host, "libcudnn") if host.executes else None
    beside = [path for stem in PARTS if loaded for path in host.glob(f"{loaded.rpartition('/')[0]}/{stem}.so.*")]
    found = [path for stem in PARTS for path in libraries.find_files(host, stem)]
    return next(iter(beside + found), None)


def check(host: Host) -> Finding:
    """Load cuDNN, add two tensors and compare.

    Returns: WORKS when every number is right; BROKEN when it does not load, refuses or answers wrongly; UNKNOWN when it
        loads and CUDA does not start, and for a recorded device; ABSENT without it.
    """
    gpu = libraries.read_gpu(host)
    loaded = libraries.load(host, "libcudnn", SONAMES)
    facts: dict[str, Fact] = {"cudnn_files": list(loaded.files), "compute_capability": gpu.capability}
    facts |= libraries.code_facts(host, "cudnn", _code_file(host), gpu.capability)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    if loaded.library is None:
        return _finding(*judge_not_loaded(loaded, l4t.is_jetson(host), host.in_container()), facts)
    return _execute(host, loaded.library, gpu, facts)
