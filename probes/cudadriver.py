"""The CUDA driver API through ctypes: loading libcuda, calling it, and its error numbers in words.

Only ever used in a child process: the native code may crash. Nothing but the driver is needed on the device.

Source: cuda.h of CUDA 13.0 (functions, enumerations, error numbers); folders per L4T release from NVIDIA's file lists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

import msgspec

from probes.host import Host

NAME = "libcuda.so.1"
# Looked at only when the loader's own search fails: the loader's path file differs per release.
FOLDERS_JETSON = ("/usr/lib/aarch64-linux-gnu/nvidia", "/usr/lib/aarch64-linux-gnu/tegra")
FOLDER_R39 = "/opt/nvidia/l4t-gpu-libs"  # below it "openrm" (Thor) and "nvgpu" (Orin); both are installed
FOLDERS_OTHER = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")

ATTRIBUTES = {
    "clock_khz": 13,
    "sm_count": 16,
    "integrated": 18,
    "capability_major": 75,
    "capability_minor": 76,
}
NO_DEVICE = 100  # of `ERRORS`
JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES = 5, 6
JIT_LOG_LIMIT_BYTES = 4096


class ErrorText(msgspec.Struct, frozen=True):
    """Name, likely cause and remedy of a CUresult."""

    name: str
    cause: str
    remedy: str


ERRORS = {
    2: ErrorText(
        "CUDA_ERROR_OUT_OF_MEMORY", "no memory left for the GPU", "free memory: on a Jetson CPU and GPU share it"
    ),
    3: ErrorText("CUDA_ERROR_NOT_INITIALIZED", "the driver did not initialise", ""),
    34: ErrorText(
        "CUDA_ERROR_STUB_LIBRARY",
        "this libcuda is the toolkit's stub for linking, not the driver",
        "take .../stubs out of LD_LIBRARY_PATH and install the driver",
    ),
    35: ErrorText(
        "cudaErrorInsufficientDriver",
        "the driver is older than the CUDA that asks",
        "use a build made for this driver (JetPack 5: CUDA 11.4, JetPack 6: 12.6 at most), or upgrade L4T",
    ),
    36: ErrorText("CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the driver is too old for this call", "upgrade the driver"),
    46: ErrorText(
        "CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is in use exclusively, or prohibited", "look at nvidia-smi -q"
    ),
    100: ErrorText("CUDA_ERROR_NO_DEVICE", "the driver sees no GPU", "is the GPU's kernel driver loaded? see dmesg"),
    101: ErrorText("CUDA_ERROR_INVALID_DEVICE", "no such device", "look at CUDA_VISIBLE_DEVICES"),
    200: ErrorText("CUDA_ERROR_INVALID_IMAGE", "the kernel's image was not understood", ""),
    209: ErrorText(
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "there is no code for this GPU, and none that could be translated for it",
        "use a build with code for this compute capability",
    ),
    218: ErrorText("CUDA_ERROR_INVALID_PTX", "the PTX was refused", "the JIT log tells the line"),
    221: ErrorText(
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "the driver's PTX compiler library is missing",
        "install the driver's libnvidia-ptxjitcompiler.so.1; in a container: NVIDIA_DRIVER_CAPABILITIES=compute",
    ),
    222: ErrorText(
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the PTX is newer than the driver",
        "use a build for this driver's CUDA version, a cuda-compat package, or upgrade L4T",
    ),
    304: ErrorText("CUDA_ERROR_OPERATING_SYSTEM", "a call to the operating system failed", "see dmesg"),
    700: ErrorText("CUDA_ERROR_ILLEGAL_ADDRESS", "the kernel touched memory that is not its own", ""),
    702: ErrorText("CUDA_ERROR_LAUNCH_TIMEOUT", "the kernel took too long", "is the GPU hung? see dmesg"),
    719: ErrorText("CUDA_ERROR_LAUNCH_FAILED", "the kernel broke off", "see dmesg"),
    800: ErrorText("CUDA_ERROR_NOT_PERMITTED", "the driver refuses this user", "look at the device nodes' groups"),
    801: ErrorText(
        "CUDA_ERROR_NOT_SUPPORTED",
        "the driver says that this is not supported here; on a Jetson mostly a device node that can't be opened",
        "add the user to the groups video and render; in a container mount /sys and start with --runtime nvidia",
    ),
    802: ErrorText(
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "the system is not ready yet",
        "start nvidia-fabricmanager, or wait and try again",
    ),
    803: ErrorText(
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "kernel driver and libcuda are of different versions",
        "reboot after the driver's upgrade; in a container use libraries of the host's version",
    ),
    804: ErrorText(
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "the cuda-compat library does not work on this GPU",
        "take the compat folder out of LD_LIBRARY_PATH",
    ),
    999: ErrorText(
        "CUDA_ERROR_UNKNOWN",
        "the driver gives no reason",
        "desktop: sudo modprobe nvidia_uvm; Jetson: groups video and render, then a cold power cycle",
    ),
}


class CudaError(Exception):
    """A driver call that failed.

    Attributes:
        call: the function, e.g. "cuInit".
        number: the CUresult.
        log: the JIT compiler's log, or "".
    """

    def __init__(self, call: str, number: int, name: str, log: str = "") -> None:
        known = ERRORS.get(number)
        self.call, self.number, self.log = call, number, log
        self.name = known.name if known else name or "unknown CUresult"
        self.cause = known.cause if known else ""
        self.remedy = known.remedy if known else ""
        super().__init__(f"{call}: {self.name} ({number})" + (f": {self.cause}" if self.cause else ""))


class SymbolMissing(Exception):
    """The library lacks a function that every driver has: a stub or a placeholder."""


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One CUDA device. `integrated` means that it shares the system's memory; `clock_hz` is 0 where not told."""

    index: int
    name: str
    capability: str
    sm_count: int
    clock_hz: int
    integrated: bool
    memory_bytes: int


class SaxpyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Device time of one launch in seconds, what came back, and memory as cuMemGetInfo tells it, in bytes."""

    values: bytes
    elapsed_s: float
    memory_free_bytes: int
    memory_total_bytes: int


def search_paths(soc: str | None) -> list[str]:
    """Where to look for libcuda, in order; the loader's own search first.

    Args:
        soc: "tegra264" takes Thor's variant on L4T 39, any other Tegra Orin's; the wrong one loads and fails later.
    """
    if soc is None:
        return [NAME, *(f"{folder}/{NAME}" for folder in FOLDERS_OTHER)]
    variant = "openrm" if soc == "tegra264" else "nvgpu"
    return [NAME, *(f"{folder}/{NAME}" for folder in (*FOLDERS_JETSON, f"{FOLDER_R39}/{variant}"))]


def load(host: Host, soc: str | None) -> ctypes.CDLL:
    """Load libcuda.

    Raises:
        OSError: with the loader's words: those about a file that exists, else those of its own search.
    """
    first: OSError | None = None
    for path in search_paths(soc):
        if path != NAME and not host.exists(path):
            continue
        try:
            return host.load_library(path)
        except OSError as error:
            first = error if first is None or path != NAME else first
    raise first if first else OSError(f"{NAME}: not found")


class CudaDriver:
    """A loaded libcuda. Every call that fails raises `CudaError`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def function(self, name: str) -> Callable[..., int]:
        """A function of the library.

        Raises:
            SymbolMissing: the library does not have it.
        """
        try:
            found: Callable[..., int] = getattr(self._library, name)
        except AttributeError as error:
            raise SymbolMissing(f"{NAME} has no {name}: a stub or a placeholder, not a driver") from error
        return found

    def call(self, name: str, *arguments: object) -> None:
        """Call a function with ctypes arguments."""
        number = self.function(name)(*arguments)
        if number:
            raise CudaError(name, number, self._error_name(number))

    def _error_name(self, number: int) -> str:
        text = c_char_p()
        try:
            failed = self.function("cuGetErrorName")(c_int(number), byref(text))
        except SymbolMissing:
            return ""
        return (text.value or b"").decode("ascii", "replace") if not failed else ""

    def start(self) -> None:
        """Initialise the driver; everything else comes after it."""
        self.call("cuInit", c_uint(0))

    def version(self) -> str:
        """The newest CUDA that the driver supports: "12.6"."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def devices(self) -> list[DeviceInfo]:
        """Every device that the driver lists, after CUDA_VISIBLE_DEVICES; none is an error, as the runtime has it."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        if count.value < 1:
            raise CudaError("cuDeviceGetCount", NO_DEVICE, "CUDA_ERROR_NO_DEVICE")
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> DeviceInfo:
        device, name, total = c_int(), ctypes.create_string_buffer(256), c_size_t()
        self.call("cuDeviceGet", byref(device), c_int(index))
        self.call("cuDeviceGetName", name, c_int(len(name)), device)
        self.call("cuDeviceTotalMem_v2", byref(total), device)
        values = {}
        for key, number in ATTRIBUTES.items():
            value = c_int()
            self.call("cuDeviceGetAttribute", byref(value), c_int(number), device)
            values[key] = value.value
        return DeviceInfo(
            index=index,
            name=name.value.decode("utf-8", "replace"),
            capability=f"{values['capability_major']}.{values['capability_minor']}",
            sm_count=values["sm_count"],
            clock_hz=values["clock_khz"] * 1000,
            integrated=bool(values["integrated"]),
            memory_bytes=total.value,
        )

    @contextmanager
    def context(self, index: int) -> Iterator[None]:
        """Make the device's primary context current, which every CUDA version creates in the same way.

        cuCtxCreate changed its arguments in CUDA 13; retaining the primary context did not, and it is the one that the
        runtime API and TensorRT use.
        """
        device, handle = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(index))
        self.call("cuDevicePrimaryCtxRetain", byref(handle), device)
        try:
            self.call("cuCtxSetCurrent", handle)
            yield
        finally:
            self.function("cuDevicePrimaryCtxRelease")(device)  # what is left of it ends with this process

    @contextmanager
    def buffer(self, size_bytes: int) -> Iterator[c_uint64]:
        """Memory on the current device."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        try:
            yield pointer
        finally:
            self.function("cuMemFree_v2")(pointer)  # an error here would hide the one that brought us here

    def upload(self, pointer: c_uint64, data: bytes) -> None:
        """Copy to the device."""
        self.call("cuMemcpyHtoD_v2", pointer, c_char_p(data), c_size_t(len(data)))

    def download(self, pointer: c_uint64, size_bytes: int) -> bytes:
        """Copy from the device."""
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoH_v2", data, pointer, c_size_t(size_bytes))
        return data.raw

    def memory(self) -> tuple[int, int]:
        """(free, total) of the current device in bytes; free leaves out page cache on unified parts."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def load_kernel(self, ptx: bytes, name: str) -> c_void_p:
        """Let the driver translate PTX for the current device.

        Raises:
            CudaError: with the JIT compiler's log.
        """
        module, kernel = c_void_p(), c_void_p()
        log = ctypes.create_string_buffer(JIT_LOG_LIMIT_BYTES)
        options = (c_int * 2)(JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), JIT_LOG_LIMIT_BYTES)
        number = self.function("cuModuleLoadDataEx")(byref(module), c_char_p(ptx), c_uint(2), options, values)
        if number:
            text = log.value.decode("utf-8", "replace").strip()
            raise CudaError("cuModuleLoadDataEx", number, self._error_name(number), text)
        self.call("cuModuleGetFunction", byref(kernel), module, name.encode())
        return kernel

    def timed(self, launch: Callable[[], None], stream: c_void_p | None = None) -> float:
        """Seconds on the device between two events around `launch`, all of it finished."""
        start, end, elapsed_ms = c_void_p(), c_void_p(), c_float()
        self.call("cuEventCreate", byref(start), c_uint(0))
        self.call("cuEventCreate", byref(end), c_uint(0))
        self.call("cuEventRecord", start, stream)
        launch()
        self.call("cuEventRecord", end, stream)
        self.call("cuEventSynchronize", end)
        self.call("cuEventElapsedTime", byref(elapsed_ms), start, end)
        self.call("cuEventDestroy_v2", start)
        self.call("cuEventDestroy_v2", end)
        return elapsed_ms.value / 1000

    def launch(self, kernel: c_void_p, threads: int, arguments: Sequence[c_uint64 | c_float | c_uint]) -> None:
        """Start a one-dimensional kernel in blocks of 256."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        blocks = (threads + 255) // 256
        grid = [c_uint(number) for number in (blocks, 1, 1, 256, 1, 1)]
        self.call("cuLaunchKernel", kernel, *grid, c_uint(0), None, pointers, None)


def run_saxpy(driver: CudaDriver, index: int, ptx: bytes, a: float, x: bytes, y: bytes) -> SaxpyResult:
    """Compute z = a * x + y on one device, twice: the second launch is timed, since the first loads code.

    Args:
        driver: started.
        index: the driver's own number of the device.
        ptx: text of `kernels/saxpy.ptx`.
        a: the factor.
        x: float32 in the machine's byte order.
        y: as many as `x`.

    Raises:
        CudaError: any step failed.
    """
    count = len(x) // 4
    with ExitStack() as stack:
        stack.enter_context(driver.context(index))
        kernel = driver.load_kernel(ptx + b"\0", "saxpy")
        dz, dx, dy = (stack.enter_context(driver.buffer(len(x))) for _ in range(3))
        driver.upload(dx, x)
        driver.upload(dy, y)
        arguments: list[c_uint64 | c_float | c_uint] = [dz, dx, dy, c_float(a), c_uint(count)]
        driver.launch(kernel, count, arguments)
        elapsed_s = driver.timed(lambda: driver.launch(kernel, count, arguments))
        values = driver.download(dz, len(x))
        free, total = driver.memory()
    return SaxpyResult(values=values, elapsed_s=elapsed_s, memory_free_bytes=free, memory_total_bytes=total)
