"""llama.cpp's C interface as llama-cpp-python gives it, and ggml's list of devices read through it.

The package is imported inside functions: importing it loads native code.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import msgspec

from probes.contract import DeviceKind
from runners.llama_log import device_kind

PACKAGE = "llama_cpp"
HANDLE, NUMBER, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
GPU_TYPES = (1, 2)  # ggml_backend_dev_type: GPU, IGPU; 0 is the CPU, 3 an accelerator beside it (BLAS)
GGML = {  # name -> result type and argument types. Source: ggml/include/ggml-backend.h of ggml 0.25.3
    "ggml_backend_dev_count": (NUMBER, []),
    "ggml_backend_dev_get": (HANDLE, [NUMBER]),
    "ggml_backend_dev_name": (TEXT, [HANDLE]),
    "ggml_backend_dev_description": (TEXT, [HANDLE]),
    "ggml_backend_dev_type": (ctypes.c_int, [HANDLE]),
    "ggml_backend_dev_memory": (None, [HANDLE, ctypes.POINTER(NUMBER), ctypes.POINTER(NUMBER)]),
    "ggml_backend_dev_backend_reg": (HANDLE, [HANDLE]),
    "ggml_backend_reg_count": (NUMBER, []),
    "ggml_backend_reg_get": (HANDLE, [NUMBER]),
    "ggml_backend_reg_name": (TEXT, [HANDLE]),
    "ggml_backend_load_all_from_path": (None, [TEXT]),
}


class GgmlDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device in ggml's registry.

    Attributes:
        backend: "CUDA", "Vulkan", "CPU": the name of its backend in the registry.
        name: as in the logs, "CUDA0".
        handle: ggml's pointer, for `llama_model_params.devices`.
    """

    backend: str
    name: str
    description: str
    kind: DeviceKind
    memory_bytes: int | None
    handle: int


class LlamaApi:
    """The low-level functions (`functions`), and what is compiled into them.

    Raises:
        ModuleNotFoundError: llama-cpp-python, or something that it needs, is not installed.
        ImportError, OSError, RuntimeError, AttributeError: it is there, but its native libraries can't be loaded, or
            are of another release.
    """

    def __init__(self) -> None:
        import llama_cpp
        import llama_cpp.llama_cpp as functions

        self.package: Any = llama_cpp
        self.functions: Any = functions
        self.version: str = llama_cpp.__version__
        self._ggml: dict[str, Any] = {}
        for name, (result, arguments) in GGML.items():
            function = getattr(functions._lib, name)
            function.restype, function.argtypes = result, arguments
            self._ggml[name.removeprefix("ggml_backend_")] = function
        if not self._ggml["reg_count"]():  # a build with GGML_BACKEND_DL: backends are files beside libllama
            self._ggml["load_all_from_path"](os.fsencode(self.library_folder()))

    def library_folder(self) -> Path:
        """Where libllama and ggml's libraries lie."""
        return Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(self.package.__file__).parent / "lib")

    def ggml_version(self) -> str:
        """Version and commit of ggml, or "" when this build does not say."""
        try:
            parts = [getattr(self.functions._lib, name) for name in ("ggml_version", "ggml_commit")]
        except AttributeError:
            return ""
        for part in parts:
            part.restype = TEXT
        return "-".join(part().decode() for part in parts)

    def backends(self) -> list[str]:
        """Names of the backends that are compiled in and were loaded."""
        ggml = self._ggml
        return [ggml["reg_name"](ggml["reg_get"](index)).decode() for index in range(ggml["reg_count"]())]

    def devices(self) -> list[GgmlDevice]:
        """All devices of all backends, in ggml's order."""
        ggml = self._ggml
        return [self._device(ggml["dev_get"](index)) for index in range(ggml["dev_count"]())]

    def _device(self, handle: int) -> GgmlDevice:
        ggml = self._ggml
        name, description = ggml["dev_name"](handle).decode(), ggml["dev_description"](handle).decode()
        free, total = NUMBER(), NUMBER()
        ggml["dev_memory"](handle, ctypes.byref(free), ctypes.byref(total))
        return GgmlDevice(
            backend=ggml["reg_name"](ggml["dev_backend_reg"](handle)).decode(),
            name=name,
            description=description.strip(),
            kind=device_kind(name, description) if ggml["dev_type"](handle) in GPU_TYPES else DeviceKind.CPU,
            memory_bytes=total.value or None,
            handle=handle,
        )
