"""Environment: variables that change what drivers, loaders and runtimes do, each with its meaning; false ones told.

Only variables named here are read and reported: others may hold secrets. A file or folder that one names and that is
not there, or a value that hides the GPU, is a cause that no driver tells.

Source: the loaders' and runtimes' own manuals, named beside each row.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 1
Judge = Callable[[Host, str], str]  # "" when nothing is wrong with the value


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """One variable, or all that begin with a name that ends in "*".

    Attributes:
        meaning: what it changes, for people.
        judge: says what is wrong with a value.
    """

    name: str
    meaning: str
    judge: Judge | None = None


def missing_paths(host: Host, value: str) -> str:
    """Files or folders of a ":" list that are not there."""
    missing = [part for part in value.split(":") if part.startswith("/") and not host.exists(part)]
    return f"names {', '.join(missing)}, which is not there" if missing else ""


def hides_all(_host: Host, value: str) -> str:
    """CUDA shows no device for "", "-1", or a list that begins with either."""
    return "hides every GPU" if value.split(",")[0].strip() in ("", "-1", "NoDevFiles", "none", "void") else ""


def stub_folder(host: Host, value: str) -> str:
    """The toolkit's stubs are for linking: a libcuda from there answers error 34 to everything."""
    stubs = [part for part in value.split(":") if part.rstrip("/").endswith("/stubs")]
    return f"has {stubs[0]}, whose libraries are stubs for linking" if stubs else ""


def forwarded(_host: Host, value: str) -> str:
    """X forwarding by ssh breaks Vulkan and EGL of JetPack 4."""
    number = value.rpartition(":")[2].partition(".")[0]
    is_forwarded = value.startswith("localhost:") and number.isascii() and number.isdigit() and int(number[:9]) >= 10
    return "is an X server forwarded by ssh, where NVIDIA's drivers find no GPU" if is_forwarded else ""


VARIABLES = (
    # CUDA C++ Programming Guide, "CUDA Environment Variables"
    Variable(name="CUDA_VISIBLE_DEVICES", meaning="which GPUs CUDA shows, and in which order", judge=hides_all),
    Variable(name="CUDA_DEVICE_ORDER", meaning="the order in which CUDA numbers GPUs"),
    Variable(name="CUDA_LAUNCH_BLOCKING", meaning="1 makes every kernel wait: slow, for debugging"),
    Variable(name="CUDA_MODULE_LOADING", meaning="EAGER loads all kernels at once: more memory"),
    Variable(name="CUDA_CACHE_DISABLE", meaning="1 translates PTX anew at every start: slow starts"),
    Variable(name="CUDA_HOME", meaning="which toolkit builds take", judge=missing_paths),
    # nvidia-container-toolkit, user guide
    Variable(name="NVIDIA_VISIBLE_DEVICES", meaning="which GPUs the container was given", judge=hides_all),
    Variable(name="NVIDIA_DRIVER_CAPABILITIES", meaning="which driver libraries the container was given"),
    # Vulkan loader, LoaderInterfaceArchitecture.md
    Variable(name="VK_DRIVER_FILES", meaning="the only Vulkan drivers looked at", judge=missing_paths),
    Variable(name="VK_ICD_FILENAMES", meaning="the only Vulkan drivers looked at (old name)", judge=missing_paths),
    Variable(name="VK_ADD_DRIVER_FILES", meaning="more Vulkan drivers", judge=missing_paths),
    Variable(name="VK_LOADER_DRIVERS_*", meaning="which Vulkan drivers the loader takes"),
    Variable(name="VK_INSTANCE_LAYERS", meaning="Vulkan layers between program and driver: slower"),
    # libglvnd, icd_enumeration.md; Mesa, envvars
    Variable(name="__EGL_VENDOR_LIBRARY_FILENAMES", meaning="the only EGL drivers looked at", judge=missing_paths),
    Variable(name="__EGL_VENDOR_LIBRARY_DIRS", meaning="where EGL drivers are looked for", judge=missing_paths),
    Variable(name="LIBGL_ALWAYS_SOFTWARE", meaning="1 makes Mesa compute on the CPU"),
    Variable(name="GALLIUM_DRIVER", meaning="which of Mesa's drivers is taken"),
    Variable(name="MESA_*", meaning="settings of Mesa's drivers"),
    Variable(name="DISPLAY", meaning="the X server that OpenGL, EGL and old Vulkan drivers ask", judge=forwarded),
    # ocl-icd manual; PoCL user documentation
    Variable(name="OCL_ICD_VENDORS", meaning="the only OpenCL drivers looked at", judge=missing_paths),
    Variable(name="OCL_ICD_FILENAMES", meaning="more OpenCL drivers"),
    Variable(name="POCL_*", meaning="settings of PoCL"),
    # ggml, docs/build.md of llama.cpp
    Variable(name="GGML_VK_VISIBLE_DEVICES", meaning="which Vulkan devices ggml takes, by the loader's own numbers"),
    Variable(name="GGML_CUDA_ENABLE_UNIFIED_MEMORY", meaning="1 lets llama.cpp use swap instead of failing"),
    Variable(name="GGML_*", meaning="settings of ggml (llama.cpp)"),
    Variable(name="WGPU_*", meaning="which backend and adapter wgpu takes"),
    Variable(name="ORT_*", meaning="settings of ONNX Runtime"),
    # ld.so(8)
    Variable(name="LD_LIBRARY_PATH", meaning="where libraries are looked for first", judge=stub_folder),
    Variable(name="LD_PRELOAD", meaning="libraries loaded into every program", judge=missing_paths),
    Variable(name="OPENBLAS_CORETYPE", meaning="which kernels OpenBLAS takes (ARMV8 avoids SIGILL on Nano and TX2)"),
    Variable(name="OMP_NUM_THREADS", meaning="how many threads OpenMP takes"),
)


def find(name: str) -> Variable | None:
    """The row about a variable: its own, else one for all that begin so."""
    exact = next((row for row in VARIABLES if row.name == name), None)
    return exact or next((row for row in VARIABLES if row.name.endswith("*") and name.startswith(row.name[:-1])), None)


def check(host: Host) -> Finding:
    """Read the variables of the process that asks.

    Returns: WORKS, also when none is set; BROKEN when one can't be meant so; UNKNOWN for a recorded device, which has
        no environment.
    """
    found = {name: (row, value) for name, value in sorted(host.environ.items()) if (row := find(name))}
    wrong = {name: said for name, (row, value) in found.items() if row.judge and (said := row.judge(host, value))}
    facts: dict[str, Fact] = {
        "variables": {name: value.replace("\0", "") for name, (_, value) in found.items()},
        "meanings": {name: row.meaning for name, (row, _) in found.items()},
    }
    status, reason, remedy = Status.WORKS, "", ""
    if host.recorded and not host.environ:
        status, reason = Status.UNKNOWN, "a recorded device has no environment"
    elif wrong:
        status = Status.BROKEN
        reason = "; ".join(f"{name}={found[name][1]} {said}" for name, said in wrong.items())
        remedy = f"unset {' '.join(wrong)}, or mend the value where it is set (the unit's Environment=, a profile)"
    return Finding(subject="environment", layer=LAYER, status=status, reason=reason, remedy=remedy, facts=facts)
