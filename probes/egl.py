"""EGL by ctypes, as much as is needed to reach OpenGL ES without a screen: devices, displays, contexts.

Source: EGL 1.5 and the extensions EGL_EXT_device_enumeration, EGL_EXT_platform_device, EGL_EXT_device_query,
EGL_MESA_platform_surfaceless, EGL_MESA_device_software (Khronos EGL registry).
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from probes.host import Host

LIBRARY = "libEGL.so.1"
EXTENSIONS = 0x3055
VENDOR = 0x3053
VERSION = 0x3054
PLATFORM_DEVICE = 0x313F
PLATFORM_SURFACELESS = 0x31DD
DEVICE_OF_DISPLAY = 0x322C
NONE = 0x3038
SURFACE_TYPE, RENDERABLE_TYPE, ES3_BIT = 0x3033, 0x3040, 0x40
CONTEXT_MAJOR, CONTEXT_MINOR = 0x3098, 0x30FB
ES_API = 0x30A0
ERRORS = {
    0x3000: "EGL_SUCCESS",
    0x3001: "EGL_NOT_INITIALIZED",
    0x3002: "EGL_BAD_ACCESS",
    0x3003: "EGL_BAD_ALLOC",
    0x3004: "EGL_BAD_ATTRIBUTE",
    0x3005: "EGL_BAD_CONFIG",
    0x3006: "EGL_BAD_CONTEXT",
    0x3008: "EGL_BAD_DISPLAY",
    0x3009: "EGL_BAD_MATCH",
    0x300C: "EGL_BAD_PARAMETER",
}


class EglError(Exception):
    """A call failed; the message names it and EGL's error code."""


class Egl:
    """The library's functions with their types, and the errors as exceptions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        pointer = ctypes.c_void_p
        self._type("eglGetError", ctypes.c_int)
        self._type("eglQueryString", ctypes.c_char_p, pointer, ctypes.c_int)
        self._type("eglGetProcAddress", pointer, ctypes.c_char_p)
        self._type("eglInitialize", ctypes.c_uint, pointer, pointer, pointer)
        self._type("eglTerminate", ctypes.c_uint, pointer)
        self._type("eglBindAPI", ctypes.c_uint, ctypes.c_uint)
        self._type("eglChooseConfig", ctypes.c_uint, pointer, pointer, pointer, ctypes.c_int, pointer)
        self._type("eglCreateContext", pointer, pointer, pointer, pointer, pointer)
        self._type("eglDestroyContext", ctypes.c_uint, pointer, pointer)
        self._type("eglMakeCurrent", ctypes.c_uint, pointer, pointer, pointer, pointer)

    def _type(self, name: str, result: Any, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, list(arguments)

    def _extension(self, name: str, result: Any, *arguments: Any) -> Any:
        address = self._library.eglGetProcAddress(name.encode())
        if not address:
            raise EglError(f"eglGetProcAddress knows no {name}")
        return ctypes.CFUNCTYPE(result, *arguments)(address)

    def _error(self, call: str) -> EglError:
        code = self._library.eglGetError()
        return EglError(f"{call} failed: {ERRORS.get(code, 'error')} (0x{code:04x})")

    def client_extensions(self) -> str:
        """The extensions that need no display; empty when EGL has no vendor library or predates 1.5."""
        return (self._library.eglQueryString(None, EXTENSIONS) or b"").decode()

    def devices(self) -> list[int]:
        """The EGL devices in EGL's own order, as handles.

        Raises:
            EglError: they can't be listed.
        """
        query = self._extension(
            "eglQueryDevicesEXT", ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)
        )
        count = ctypes.c_int()
        handles = (ctypes.c_void_p * 16)()
        if not query(len(handles), handles, ctypes.byref(count)):
            raise self._error("eglQueryDevicesEXT")
        return [handle or 0 for handle in handles[: count.value]]

    def device_extensions(self, device: int) -> str:
        """The extensions of an EGL device, which tell what it is; empty when it has none."""
        query = self._extension("eglQueryDeviceStringEXT", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)
        return (query(device, EXTENSIONS) or b"").decode()

    def device_of(self, display: int) -> int | None:
        """The EGL device behind a display, or None when EGL does not tell."""
        if "EGL_EXT_device_query" not in self.client_extensions():
            return None
        query = self._extension(
            "eglQueryDisplayAttribEXT",
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_void_p),
        )
        device = ctypes.c_void_p()
        return device.value if query(display, DEVICE_OF_DISPLAY, ctypes.byref(device)) else None

    def open_display(self, platform: int, native: int | None, stack: contextlib.ExitStack) -> int:
        """An initialised display, terminated with `stack`.

        Args:
            platform: `PLATFORM_DEVICE` or `PLATFORM_SURFACELESS`.
            native: the EGL device for the former, None for the latter.
            stack: closes it.

        Raises:
            EglError: with the call that failed.
        """
        get = self._extension(
            "eglGetPlatformDisplayEXT", ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p
        )
        display = get(platform, native, None)
        if not display:
            raise self._error("eglGetPlatformDisplayEXT")
        if not self._library.eglInitialize(display, None, None):
            raise self._error("eglInitialize")
        stack.callback(self._library.eglTerminate, display)
        return int(display)

    def display_string(self, display: int, name: int) -> str:
        """`VENDOR` or `VERSION` of a display."""
        return (self._library.eglQueryString(display, name) or b"").decode()

    def make_context(self, display: int, stack: contextlib.ExitStack) -> int:
        """An OpenGL ES 3.1 context (or newer, compatible), without a surface; destroyed with `stack`.

        Raises:
            EglError: e.g. EGL_BAD_MATCH when the driver has no ES 3.1.
        """
        if not self._library.eglBindAPI(ES_API):
            raise self._error("eglBindAPI")
        # Surface type 0 asks for nothing; the default would ask for a window.
        wanted = (ctypes.c_int * 5)(SURFACE_TYPE, 0, RENDERABLE_TYPE, ES3_BIT, NONE)
        config, count = ctypes.c_void_p(), ctypes.c_int()
        chosen = self._library.eglChooseConfig(display, wanted, ctypes.byref(config), 1, ctypes.byref(count))
        if not chosen or not count.value:
            raise self._error("eglChooseConfig for OpenGL ES 3")
        version = (ctypes.c_int * 5)(CONTEXT_MAJOR, 3, CONTEXT_MINOR, 1, NONE)
        context = self._library.eglCreateContext(display, config, None, version)
        if not context:
            raise self._error("eglCreateContext for OpenGL ES 3.1")
        stack.callback(self._library.eglDestroyContext, display, context)
        return int(context)

    def make_current(self, display: int, context: int) -> None:
        """Let this thread's OpenGL ES calls go to `context`.

        Raises:
            EglError: e.g. when the driver wants a surface.
        """
        if not self._library.eglMakeCurrent(display, None, None, context):
            raise self._error("eglMakeCurrent without a surface")

    def release(self, display: int) -> None:
        """Let go of the current context, so that it can be destroyed."""
        self._library.eglMakeCurrent(display, None, None, None)


def load(host: Host) -> Egl:
    """Load EGL; only in a probe's own child process.

    Raises:
        OSError: it can't be loaded.
    """
    return Egl(host.load_library(LIBRARY))
