"""OpenGL ES: an ES 3.1 compute shader computes 3x + y on 1,048,576 floats, and each number is compared.

No screen and no X server: the EGL device platform first for hardware (NVIDIA has only that), then Mesa's surfaceless
platform. Timed by the host: llvmpipe's timer queries answer 1 ns.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from probes import egl, icd, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "l4t", "nodes", "mesa", "egl", "egl_libraries", "python")
USES_GPU = True
LIBRARY = "libGLESv2.so.2"
SYMBOLS = ("__egl_Main",)
FOLDERS = ("/etc/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d")
REPLACING = ("__EGL_VENDOR_LIBRARY_FILENAMES", "__EGL_VENDOR_LIBRARY_DIRS")
VARIABLES = (*REPLACING, "EGL_PLATFORM", "LIBGL_*", "GALLIUM_DRIVER", "MESA_*", "EGL_LOG_LEVEL")
PACKAGES = {egl.LIBRARY: "libegl1", LIBRARY: "libgles2"}
INSTALL_DRIVER = (
    "install the GPU's driver (Jetson: nvidia-l4t-3d-core), or Mesa: apt-get install libegl-mesa0 libgl1-mesa-dri"
)
SOFTWARE_DEVICE = "EGL_MESA_device_software"
GL_VENDOR, GL_RENDERER, GL_VERSION = 0x1F00, 0x1F01, 0x1F02
COMPUTE_SHADER, COMPILE_STATUS, LINK_STATUS = 0x91B9, 0x8B81, 0x8B82
STORAGE_BUFFER, DYNAMIC_COPY, MAP_READ_BIT, BUFFER_UPDATE_BARRIER = 0x90D2, 0x88EA, 0x0001, 0x0200
_finding = functools.partial(saxpy.finding, "gles", LAYER)


class GlesError(Exception):
    """OpenGL ES refused something; the message has its own words."""


class Road(msgspec.Struct, frozen=True, kw_only=True):
    """One way to a display.

    Attributes:
        index: number of the EGL device, in EGL's order; the surfaceless platform comes after them all.
        platform: EGL's number of the platform.
        handle: the EGL device; None for the surfaceless platform.
    """

    index: int
    platform: int
    handle: int | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A context that can be made current, and what it says of itself."""

    device: Device
    display: int
    context: int


def check(host: Host) -> Finding:
    """Run the shader on every hardware device, or on the software device when there is none."""
    drivers = read_drivers(host)
    facts: dict[str, Fact] = {"environment": icd.environment(host, VARIABLES)}
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts | icd.facts(drivers))
    drivers = icd.tried(host, drivers, SYMBOLS)
    facts |= icd.facts(drivers)
    if fatal := icd.deadly("EGL", drivers):
        return _finding(fatal.status, fatal.reason, fatal.remedy, facts)
    try:
        egl_library = egl.load(host)
        gl = Gles(host.load_library(LIBRARY))
    except OSError as error:
        return library_unusable(str(error), facts)
    with contextlib.ExitStack() as stack:
        opened, errors = open_all(egl_library, gl, stack)
        facts["display_errors"] = errors
        if not opened:
            said = "; ".join(errors) or "EGL offers neither a device nor the surfaceless platform"
            return no_device(host, drivers, facts, said)
        facts["egl"] = ", ".join(egl_library.display_string(opened[0].display, n) for n in (egl.VENDOR, egl.VERSION))
        devices = tuple(o.device for o in opened)
        given = saxpy.problem()
        chosen = saxpy.candidates(devices)
        with witness.Watch(host) as watch:
            evidence = tuple(execute(egl_library, gl, o, given, host) for o in opened if o.device in chosen)
    facts["ran_on_index"] = [d.index for d in chosen]
    why = "; ".join(part for part in (icd.why_no_gpu(host, drivers), *errors) if part)
    status, reason = saxpy.verdict(evidence, why)
    testimony = watch.witnesses(evidence, (os.getpid(),), witness.on_cpu(given, evidence))
    version = chosen[0].api_version
    told = functools.partial(_finding, version=version, devices=devices, evidence=evidence, witnesses=testimony)
    return told(status, reason, "", facts)


# Read


def read_drivers(host: Host) -> list[icd.Driver]:
    """The vendor files that GLVND's EGL considers (libglvnd, icd_enumeration.md)."""
    files = host.environ.get(REPLACING[0], "")
    if files:
        return [icd.read_manifest(host, path) for path in files.split(":") if path]
    folders = [f for f in host.environ.get(REPLACING[1], "").split(":") if f] or list(FOLDERS)
    return [icd.read_manifest(host, path) for path in icd.manifests(host, folders, ".json")]


def list_devices(library: egl.Egl) -> list[tuple[int, str]]:
    """EGL's devices in its order, handle and extensions of each; empty when EGL can't list any.

    Raises:
        EglError: it should be able to, and failed.
    """
    client = set(library.client_extensions().split())
    if not client & {"EGL_EXT_device_enumeration", "EGL_EXT_device_base"}:
        return []
    return [(handle, library.device_extensions(handle)) for handle in library.devices()]


def roads(devices: Sequence[tuple[int, str]], client_extensions: str) -> list[Road]:
    """The displays to try: each hardware device, then the surfaceless platform, which Mesa has for any device.

    Args:
        devices: handle and extensions, as `list_devices` gives them.
        client_extensions: of EGL itself.
    """
    client = client_extensions.split()
    found = [
        Road(index=index, platform=egl.PLATFORM_DEVICE, handle=handle)
        for index, (handle, extensions) in enumerate(devices)
        if SOFTWARE_DEVICE not in extensions.split()
    ]
    if "EGL_MESA_platform_surfaceless" in client:
        found.append(Road(index=len(devices), platform=egl.PLATFORM_SURFACELESS))
    return found


def open_all(library: egl.Egl, gl: Gles, stack: contextlib.ExitStack) -> tuple[list[Opened], list[str]]:
    """A context on every device that gives one, each device once, and what the others said."""
    opened: list[Opened] = []
    errors: list[str] = []
    try:
        devices = list_devices(library)
    except egl.EglError as error:
        return [], [str(error)]
    numbers = {handle: index for index, (handle, _) in enumerate(devices)}
    seen: set[int] = set()
    for road in roads(devices, library.client_extensions()):
        name = "surfaceless platform" if road.handle is None else f"EGL device {road.index}"
        try:
            display = library.open_display(road.platform, road.handle, stack)
            behind = road.handle or library.device_of(display) or 0
            if behind in seen:
                continue
            opened.append(open_one(library, gl, display, numbers.get(behind, road.index), stack))
        except (egl.EglError, GlesError) as error:
            errors.append(f"{name}: {error}")
            continue
        if behind:
            seen.add(behind)
    return opened, errors


def open_one(library: egl.Egl, gl: Gles, display: int, index: int, stack: contextlib.ExitStack) -> Opened:
    """A context on `display`, and its device as OpenGL ES describes it.

    Raises:
        EglError: there is no ES 3.1 context.
    """
    context = library.make_context(display, stack)
    library.make_current(display, context)
    try:
        renderer = gl.string(GL_RENDERER)
        device = Device(
            index=index,
            name=renderer,
            kind=saxpy.kind_of(DeviceKind.GPU, renderer),
            vendor=gl.string(GL_VENDOR),
            driver=library.display_string(display, egl.VENDOR),
            api_version=gl.string(GL_VERSION),
        )
    finally:
        library.release(display)
    return Opened(device=device, display=display, context=context)


# Judge


def library_unusable(said: str, facts: Mapping[str, Fact]) -> Finding:
    """Tell a library that is not installed (ABSENT) from one that can't be loaded (BROKEN)."""
    name = next((name for name in PACKAGES if name in said), egl.LIBRARY)
    missing = re.match(rf"{re.escape(name)}: cannot open shared object file: No such file", said)
    remedy = f"apt-get install {PACKAGES[name]}"
    return _finding(Status.ABSENT if missing else Status.BROKEN, said, remedy, facts)


def no_device(host: Host, drivers: Sequence[icd.Driver], facts: Mapping[str, Fact], said: str) -> Finding:
    """Judge an EGL that loads but gives no OpenGL ES 3.1 context; `said` is what it answered."""
    judged = icd.nothing_found(
        host,
        "EGL",
        drivers,
        replaced_by=icd.override(icd.environment(host, VARIABLES), REPLACING),
        searched=FOLDERS,
        said=said,
    )
    if judged.status is Status.ABSENT and drivers and "eglInitialize failed" in said:
        # Mesa's EGL is there, but not the DRI driver that it opens: "MESA-LOADER: failed to open swrast".
        remedy = f"apt-get install libgl1-mesa-dri; on other drivers: {INSTALL_DRIVER}"
        return _finding(Status.BROKEN, judged.reason, remedy, facts)
    return _finding(judged.status, judged.reason, judged.remedy or INSTALL_DRIVER, facts)


# Execute


class Gles:
    """The OpenGL ES functions with their types; they go to the context that is current."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        size, pointer = ctypes.c_ssize_t, ctypes.c_void_p
        library.glGetString.restype = ctypes.c_char_p
        library.glBufferData.argtypes = [ctypes.c_uint, size, pointer, ctypes.c_uint]
        library.glMapBufferRange.restype = pointer
        library.glMapBufferRange.argtypes = [ctypes.c_uint, size, size, ctypes.c_uint]
        library.glUniform1f.argtypes = [ctypes.c_int, ctypes.c_float]

    def string(self, name: int) -> str:
        """`GL_VENDOR`, `GL_RENDERER` or `GL_VERSION`.

        Raises:
            GlesError: no context is current.
        """
        text = self.library.glGetString(name)
        if text is None:
            raise GlesError(f"glGetString(0x{name:04x}) gave nothing")
        return str(text.decode(errors="replace"))

    def program(self, source: bytes) -> int:
        """Compile and link a compute shader.

        Raises:
            GlesError: with the compiler's or linker's log.
        """
        shader = self.library.glCreateShader(COMPUTE_SHADER)
        text = ctypes.c_char_p(source)
        self.library.glShaderSource(shader, 1, ctypes.byref(text), None)
        self.library.glCompileShader(shader)
        self._must(shader, COMPILE_STATUS, "Shader")
        program = self.library.glCreateProgram()
        self.library.glAttachShader(program, shader)
        self.library.glLinkProgram(program)
        self._must(program, LINK_STATUS, "Program")
        return int(program)

    def _must(self, thing: int, status: int, kind: str) -> None:
        done = ctypes.c_int()
        getattr(self.library, f"glGet{kind}iv")(thing, status, ctypes.byref(done))
        if not done.value:
            log = ctypes.create_string_buffer(2048)
            getattr(self.library, f"glGet{kind}InfoLog")(thing, len(log), None, log)
            raise GlesError(f"{kind.lower()}: {log.value.decode(errors='replace').strip()}")

    def storage_buffer(self, binding: int, data: bytes) -> None:
        """A shader storage buffer with `data`, bound as `binding` and left bound for reading back."""
        name = ctypes.c_uint()
        self.library.glGenBuffers(1, ctypes.byref(name))
        self.library.glBindBuffer(STORAGE_BUFFER, name)
        self.library.glBufferData(STORAGE_BUFFER, len(data), data, DYNAMIC_COPY)
        self.library.glBindBufferBase(STORAGE_BUFFER, binding, name)

    def read_back(self, size_bytes: int) -> bytes:
        """The bytes of the storage buffer bound last.

        Raises:
            GlesError: it can't be mapped.
        """
        address = self.library.glMapBufferRange(STORAGE_BUFFER, 0, size_bytes, MAP_READ_BIT)
        if not address:
            raise GlesError(f"glMapBufferRange failed: glGetError 0x{self.library.glGetError():04x}")
        return ctypes.string_at(address, size_bytes)


def execute(library: egl.Egl, gl: Gles, opened: Opened, given: saxpy.Problem, host: Host) -> Evidence:
    """Run the shader in one context; an error of the API becomes evidence of failure."""
    try:
        library.make_current(opened.display, opened.context)
        try:
            result, elapsed_s = dispatch(gl, given, host)
        finally:
            library.release(opened.display)
    except (egl.EglError, GlesError) as error:
        return saxpy.failed(given, opened.device, str(error))
    return saxpy.compared(given, opened.device, result, elapsed_s, "host")


def dispatch(gl: Gles, given: saxpy.Problem, host: Host) -> tuple[bytes, float]:
    """Run the shader once in the current context.

    Returns: y as float32, and the seconds from the dispatch to its end on the host's clock.

    Raises:
        GlesError: with the compiler's words or the error code.
    """
    program = gl.program(saxpy.kernel("saxpy_es.comp"))
    gl.library.glUseProgram(program)
    gl.library.glUniform1f(gl.library.glGetUniformLocation(program, b"a"), saxpy.FACTOR)
    gl.storage_buffer(0, given.x)
    gl.storage_buffer(1, given.y)
    gl.library.glFinish()
    start_s = host.monotonic_s()
    gl.library.glDispatchCompute(saxpy.COUNT // saxpy.GROUP, 1, 1)
    gl.library.glMemoryBarrier(BUFFER_UPDATE_BARRIER)
    gl.library.glFinish()
    elapsed_s = host.monotonic_s() - start_s
    code = gl.library.glGetError()
    if code:
        raise GlesError(f"glDispatchCompute: glGetError 0x{code:04x}")
    return gl.read_back(len(given.y)), elapsed_s
