"""CUDA runtime: libcudart fills memory, NVRTC compiles a kernel that runs, cuBLAS multiplies, all compared.

The driver (see `cuda`) comes with the system; these libraries come with a toolkit, with JetPack's packages or inside of
Python wheels, and are where versions part: a runtime newer than the driver, or a library without code for this GPU.

Loading, versions and compiling were executed with the libraries of CUDA 13.5 on a machine without a GPU. What needs one
(filling, running, multiplying) has not been seen working yet.

Source: cuda_runtime_api.h, nvrtc.h and cublas_api.h of CUDA 13.5; functions that CUDA 10.2 has as well.
"""

from __future__ import annotations

import ctypes
import functools
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_void_p

import msgspec

from probes import cuda_libraries as libraries
from probes import cudadriver, l4t, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status, Witness, cut
from probes.cuda_libraries import Gpu, Loaded, call
from probes.cudadriver import CudaError, SymbolMissing
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "libcuda", "cuda_libraries", "python")
USES_GPU = True
COST_S = 4.0
DEADLINE_S = 60.0
MEMORY_MIB = 2048  # cuBLAS maps half a gigabyte; what becomes resident depends on the GPU

CUDART = ("13", "12", "11.0", "10.2")
NVRTC = ("13", "12", "11.2", "11.1", "11.0", "10.2")
CUBLAS = ("13", "12", "11", "10")
FILL, FILL_BYTES = 0x40, 1 << 20  # each float32 of four such bytes is 3.0039...: no value that memory has by chance
SIDE = 16
COPY_TO_HOST = 2
SOURCE = (
    b'extern "C" __global__ void saxpy(float* z, const float* x, const float* y, float a, unsigned n)\n'
    b"{ unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) z[i] = a * x[i] + y[i]; }\n"
)
_finding = functools.partial(saxpy.finding, "cuda_runtime", LAYER)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One library: what it did.

    Attributes:
        name: for people, "cuBLAS".
        version: as the library itself says; None when it did not load.
        evidence: what it did on the GPU; None when it did nothing there.
        loads: whether it could be loaded and called at all.
        problem: why it did less than it should; "" when all is well, or when there is no GPU to try it on.
        remedy: for that problem, when it is known.
    """

    name: str
    version: str | None = None
    evidence: Evidence | None = None
    loads: bool = False
    problem: str = ""
    remedy: str = ""


def _attempt(name: str, loaded: Loaded, work: Callable[[ctypes.CDLL], Part]) -> Part:
    if loaded.library is None:
        return Part(name=name, problem=loaded.problem)
    try:
        return work(loaded.library)
    except (CudaError, SymbolMissing) as error:
        remedy = error.remedy if isinstance(error, CudaError) else ""
        return Part(name=name, loads=True, problem=str(error), remedy=remedy)


def try_cudart(library: ctypes.CDLL, gpu: Gpu) -> Part:
    """Ask for the version; with a GPU, have memory filled by it and copied back."""
    number = c_int()
    call(library, "cudaRuntimeGetVersion", byref(number))
    part = Part(name="CUDA runtime", version=f"{number.value // 1000}.{number.value % 1000 // 10}", loads=True)
    if gpu.info is None:
        return part
    pointer, answer = c_void_p(), ctypes.create_string_buffer(FILL_BYTES)
    try:
        call(library, "cudaMalloc", byref(pointer), c_size_t(FILL_BYTES))
        elapsed_s = timed(gpu, lambda: call(library, "cudaMemset", pointer, c_int(FILL), c_size_t(FILL_BYTES)))
        call(library, "cudaMemcpy", answer, pointer, c_size_t(FILL_BYTES), c_int(COPY_TO_HOST))
        call(library, "cudaFree", pointer)
    except CudaError as error:
        return msgspec.structs.replace(part, problem=str(error), remedy=error.remedy)
    seen = libraries.evidence(f"cudaMemset of {FILL_BYTES} bytes", gpu.info, answer.raw, filled(), elapsed_s)
    return msgspec.structs.replace(part, evidence=seen)


def filled() -> bytes:
    """What cudaMemset has to leave behind."""
    return bytes([FILL]) * FILL_BYTES


def timed(gpu: Gpu, work: Callable[[], None]) -> float | None:
    """Seconds by the GPU's clock that the second of two times took, as the first one loads code; None without a driver.

    The work is to be in the default stream, and a context current.
    """
    work()
    return gpu.driver.timed(work) if gpu.driver else None


def compile_cubin(library: ctypes.CDLL, architecture: str) -> bytes:
    """Compile the kernel for "sm_87".

    Raises:
        CudaError: NVRTC said no; its number is NVRTC's own (5: unknown architecture, 6: compiler error).
    """
    program, size = c_void_p(), c_size_t()
    call(library, "nvrtcCreateProgram", byref(program), c_char_p(SOURCE), c_char_p(b"saxpy.cu"), c_int(0), None, None)
    option = (c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    number = libraries.symbol(library, "nvrtcCompileProgram")(program, c_int(1), option)
    if number:
        raise CudaError(
            f"nvrtcCompileProgram for {architecture}", number, "NVRTC_ERROR", _compiler_log(library, program)
        )
    call(library, "nvrtcGetCUBINSize", program, byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    call(library, "nvrtcGetCUBIN", program, cubin)
    return cubin.raw


def _compiler_log(library: ctypes.CDLL, program: c_void_p) -> str:
    size = c_size_t()
    if libraries.symbol(library, "nvrtcGetProgramLogSize")(program, byref(size)) or not 0 < size.value < 1 << 20:
        return ""
    text = ctypes.create_string_buffer(size.value)
    failed = libraries.symbol(library, "nvrtcGetProgramLog")(program, text)
    return "" if failed else cut(text.value.decode("utf-8", "replace"), 400)


def try_nvrtc(library: ctypes.CDLL, gpu: Gpu) -> Part:
    """Compile the kernel for this GPU; with one, run it."""
    major, minor = c_int(), c_int()
    call(library, "nvrtcVersion", byref(major), byref(minor))
    part = Part(name="NVRTC", version=f"{major.value}.{minor.value}", loads=True)
    if gpu.capability is None:
        return part
    architecture = "sm_" + gpu.capability.replace(".", "")
    try:
        cubin = compile_cubin(library, architecture)
        if gpu.driver is None or gpu.info is None:
            return part
        given = saxpy.problem()
        result = cudadriver.run_saxpy(gpu.driver, gpu.info.index, cubin, saxpy.FACTOR, given.x, given.y)
    except (CudaError, SymbolMissing) as error:
        log = f"; {error.log}" if isinstance(error, CudaError) and error.log else ""
        return msgspec.structs.replace(part, problem=f"{error}{log}")
    name = f"saxpy compiled for {architecture}"
    seen = libraries.evidence(name, gpu.info, result.values, given.expected, result.elapsed_s)
    return msgspec.structs.replace(part, evidence=seen)


def matrices() -> tuple[bytes, bytes, bytes]:
    """Two square matrices and their product, column by column, of small whole numbers: exact in TF32 too."""
    a = array("f", (i % 7 for i in range(SIDE * SIDE)))
    b = array("f", (i % 5 for i in range(SIDE * SIDE)))
    return a.tobytes(), b.tobytes(), product(a, b)


def product(a: Sequence[float], b: Sequence[float]) -> bytes:
    """Two square matrices multiplied in plain Python: float32."""
    sides = range(SIDE)
    cells = (sum(a[k * SIDE + row] * b[column * SIDE + k] for k in sides) for column in sides for row in sides)
    return array("f", cells).tobytes()


def try_cublas(library: ctypes.CDLL, gpu: Gpu) -> Part:
    """Ask for the version; with a GPU, multiply two matrices on it."""
    numbers = [c_int(), c_int(), c_int()]
    for kind, number in enumerate(numbers):
        call(library, "cublasGetProperty", c_int(kind), byref(number))
    part = Part(name="cuBLAS", version=".".join(str(number.value) for number in numbers), loads=True)
    if gpu.driver is None or gpu.info is None:
        return part
    try:
        answer, elapsed_s = _multiply(library, gpu)
    except (CudaError, SymbolMissing) as error:
        return msgspec.structs.replace(part, problem=f"cuBLAS {part.version}: {error}")
    seen = libraries.evidence(f"cublasSgemm, {SIDE} x {SIDE}", gpu.info, answer, matrices()[2], elapsed_s)
    return msgspec.structs.replace(part, evidence=seen)


def _multiply(library: ctypes.CDLL, gpu: Gpu) -> tuple[bytes, float | None]:
    assert gpu.driver is not None
    a, b, _ = matrices()
    with ExitStack() as stack:
        stack.enter_context(gpu.driver.context(0))
        da, db, dc = (stack.enter_context(gpu.driver.buffer(len(a))) for _ in range(3))
        gpu.driver.upload(da, a)
        gpu.driver.upload(db, b)
        handle, one, zero, side = c_void_p(), c_float(1), c_float(0), c_int(SIDE)
        call(library, "cublasCreate_v2", byref(handle))
        sizes, plain = (side, side, side), c_int(0)
        sides = (byref(one), da, side, db, side, byref(zero), dc, side)
        elapsed_s = timed(gpu, lambda: call(library, "cublasSgemm_v2", handle, plain, plain, *sizes, *sides))
        answer = gpu.driver.download(dc, len(a))  # waits: the default stream is in order
        call(library, "cublasDestroy_v2", handle)
    return answer, elapsed_s


def on_cpu(parts: Sequence[Part]) -> Iterator[Witness]:
    """What each library did on the GPU, done again on the CPU."""
    runtime, nvrtc, cublas = (part.evidence for part in parts)
    if nvrtc:
        yield witness.on_cpu(saxpy.problem(), (nvrtc,))
    if runtime:
        yield witness.again(f"Python, {FILL_BYTES} bytes filled", filled, runtime, filled())
    if cublas:
        a, b, expected = matrices()
        left, right = array("f", a), array("f", b)
        yield witness.again("plain Python, the product", lambda: product(left, right), cublas, expected)


def missing_remedy(is_jetson: bool, in_container: bool) -> str:
    """What brings the libraries here. An image for JetPack 4 has none of its own and takes the host's."""
    if is_jetson and in_container:
        return "install nvidia-jetpack on the host, of the image's L4T, and start the container with --runtime nvidia"
    return "sudo apt install nvidia-jetpack" if is_jetson else "install NVIDIA's CUDA runtime libraries"


def judge(parts: list[Part], gpu: Gpu, has_files: bool, remedy: str) -> tuple[Status, str, str]:
    """What the libraries' answers mean together: (status, reason, remedy).

    Args:
        parts: runtime, NVRTC, cuBLAS.
        gpu: as far as it is known.
        has_files: whether any file of them is on the device.
        remedy: what brings them when they are not there.
    """
    problems = "; ".join(part.problem for part in parts if part.problem)
    if not any(part.loads for part in parts):
        if has_files:
            return Status.BROKEN, f"CUDA's libraries are there, but don't load: {problems}", remedy
        where = "the driver alone is installed" if gpu.version else "none of CUDA's libraries is here"
        return Status.ABSENT, f"{where}: {problems}", remedy
    runtime = parts[0].version
    wrong = [part for part in parts if part.evidence and not part.evidence.is_right]
    if wrong:
        told = "; ".join(f"{part.name} answered wrongly: {part.evidence.value}" for part in wrong if part.evidence)
        return Status.BROKEN, told, ""
    if libraries.is_newer(runtime, gpu.version) and any(part.problem for part in parts if part.loads):
        reason = f"CUDA runtime {runtime} is newer than the driver's {gpu.version}: {problems}"
        return Status.BROKEN, reason, cudadriver.ERRORS[35].remedy
    if gpu.driver is None:
        names = [f"{part.name} {part.version}" for part in parts if part.loads]
        reason = f"{', '.join(names)} {'load' if len(names) > 1 else 'loads'}, but CUDA does not start: {gpu.problem}"
        return Status.UNKNOWN, "; ".join([reason, *(p.problem for p in parts if p.loads and p.problem)]), SEE_CUDA
    remedy = next((part.remedy for part in parts if part.remedy), "")
    failed = any(part.problem for part in parts if part.loads) or not any(part.evidence for part in parts)
    return Status.BROKEN if failed else Status.WORKS, problems, remedy


SEE_CUDA = "see the finding about cuda"


def _facts(host: Host, gpu: Gpu, loads: dict[str, Loaded]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {f"{name}_files": list(loaded.files) for name, loaded in loads.items()}
    cublas = (libraries.loaded_path(host, "libcublasLt") if host.executes else None) or next(
        iter(libraries.find_files(host, "libcublasLt")), None
    )
    return {
        **facts,
        "driver_cuda_version": gpu.version,
        "compute_capability": gpu.capability,
        **libraries.code_facts(host, "cublas", cublas, gpu.capability),
    }


def check(host: Host) -> Finding:
    """Load each library and have it work on the first device.

    Returns: WORKS when each that is there did right (a sentence names those that are not); BROKEN when one failed or
        answered wrongly; UNKNOWN when they load and the driver does not start, and for a recorded device; ABSENT when
        there are none.
    """
    gpu = libraries.read_gpu(host)
    loads = {
        "cudart": libraries.load(host, "libcudart", CUDART, gpu.version),
        "nvrtc": libraries.load(host, "libnvrtc", NVRTC, gpu.version),
        "cublas": libraries.load(host, "libcublas", CUBLAS, gpu.version),
    }
    facts = _facts(host, gpu, loads)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    with witness.Watch(host) as watch:
        parts = [
            _attempt("CUDA runtime", loads["cudart"], lambda library: try_cudart(library, gpu)),
            _attempt("NVRTC", loads["nvrtc"], lambda library: try_nvrtc(library, gpu)),
            _attempt("cuBLAS", loads["cublas"], lambda library: try_cublas(library, gpu)),
        ]
    for name, part in zip(loads, parts, strict=True):
        facts[f"{name}_version"] = part.version
        if name != "cublas":  # whose numbers are its own
            facts[f"{name}_newer_than_driver"] = libraries.is_newer(part.version, gpu.version)
    missing = missing_remedy(l4t.is_jetson(host), host.in_container())
    has_files = any(loaded.files for loaded in loads.values())
    status, reason, remedy = judge(parts, gpu, has_files, missing)
    devices: tuple[Device, ...] = ()
    if gpu.info:
        devices = (Device(index=gpu.info.index, name=gpu.info.name, kind=DeviceKind.GPU, vendor="NVIDIA"),)
    seen = tuple(part.evidence for part in parts if part.evidence)
    said = watch.witnesses(seen, (os.getpid(),), *on_cpu(parts))
    told = functools.partial(_finding, version=parts[0].version or "", devices=devices, evidence=seen, witnesses=said)
    return told(status, reason, remedy, facts)
