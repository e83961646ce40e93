"""CUDA: the driver translates a shipped PTX kernel, runs z = 3x + y on every device, and each number is compared.

Nothing but the driver (libcuda.so.1) is needed. That the library loads proves nothing; a stub loads too.
Not yet seen working on a device: no GPU was at hand.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys

import msgspec

from probes import cuda_libraries, cudadriver, devicetree, gpu_nodes, l4t, pci, saxpy, witness
from probes.contract import Device, DeviceKind, Evidence, Fact, Finding, Status, cut
from probes.cudadriver import CudaDriver, CudaError, DeviceInfo, SymbolMissing
from probes.host import Host

LAYER = 2
RESTS_ON = ("driver", "pci", "l4t", "nodes", "libcuda", "python")
USES_GPU = True
ACCESS_CODES = (100, 101, 304, 800, 801, 999)  # one cause, missing groups, gives any of these
VISIBLE = "CUDA_VISIBLE_DEVICES"
_finding = functools.partial(saxpy.finding, "cuda", LAYER)
RUNTIME_REMEDY = "start the container with --runtime nvidia, or --device nvidia.com/gpu=all (CDI)"


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say about the GPU, before CUDA is asked.

    Attributes:
        soc: "tegra234", or None on what is no Tegra.
        blocked: device nodes that are there but that this user can't read, by group.
        gpu_dead: nvgpu's node folder holds nothing but "power".
        visible: the value of `CUDA_VISIBLE_DEVICES`, which hides devices; None when it is not set.
    """

    soc: str | None
    is_jetson: bool
    in_container: bool
    gpus: tuple[pci.PciGpu, ...]
    blocked: dict[str, list[str]]
    gpu_dead: bool
    libraries: list[str]
    has_nodes: bool
    visible: str | None = None


def read_surroundings(host: Host) -> Surroundings:
    """Look at nodes, libraries and PCI; nothing is loaded."""
    nodes = host.glob(f"{gpu_nodes.IGPU}/*")
    return Surroundings(
        soc=devicetree.read_device_tree(host).soc,
        is_jetson=l4t.is_jetson(host),
        in_container=host.in_container(),
        gpus=pci.nvidia_gpus(host),
        blocked={} if host.recorded else _read_blocked(host),
        gpu_dead=[node.rpartition("/")[2] for node in nodes] == ["power"],
        libraries=_read_libraries(host),
        has_nodes=gpu_nodes.there(host, gpu_nodes.NVIDIA),
        visible=host.environ.get(VISIBLE),
    )


def _read_blocked(host: Host) -> dict[str, list[str]]:
    blocked = {group: gpu_nodes.unreadable(host, nodes) for group, nodes in gpu_nodes.GROUPS.items()}
    return {group: paths for group, paths in blocked.items() if paths}


def _read_libraries(host: Host) -> list[str]:
    folders = (
        *cudadriver.FOLDERS_JETSON,
        f"{cudadriver.FOLDER_R39}/nvgpu",
        f"{cudadriver.FOLDER_R39}/openrm",
        *cudadriver.FOLDERS_OTHER,
    )
    return [path for folder in folders for path in host.glob(f"{folder}/libcuda.so*")]


def judge_not_loaded(said: str, around: Surroundings) -> tuple[Status, str, str]:
    """Why there is no libcuda: (status, reason, remedy).

    Args:
        said: the loader's own words.
        around: what the files say.
    """
    if "file too short" in said:
        reason = f"{said}: an empty placeholder, which the NVIDIA container runtime would have covered"
        return Status.ABSENT, reason, RUNTIME_REMEDY
    if said and not said.partition(":")[0].endswith((cudadriver.NAME, "libcuda.so.1.1")):
        return Status.BROKEN, f"libcuda is there, but a library below it is not: {said}", _reinstall_remedy(around)
    if around.is_jetson and (around.in_container or not around.has_nodes):
        where = "a container on a Jetson" if around.in_container else "a Jetson without the GPU's device nodes"
        reason = f"{said}; this is {where}: it was started without the NVIDIA runtime"
        return Status.ABSENT, reason, RUNTIME_REMEDY
    if around.is_jetson:
        return Status.ABSENT, f"{said}; the L4T driver package is missing", _reinstall_remedy(around)
    if any(gpu.driver == "nvidia" for gpu in around.gpus):
        reason = f"{said}; the kernel driver is loaded, its user-space library is not here"
        return Status.ABSENT, reason, "install the driver's libcuda (Debian: libcuda1); in a container: --gpus all"
    if around.gpus:
        return Status.ABSENT, f"{said}; there is {around.gpus[0].text}", "install the NVIDIA driver, then reboot"
    remedy = "nothing to install: CUDA needs an NVIDIA GPU; if one is fitted, look at lspci and dmesg"
    return Status.ABSENT, f"{said}; no NVIDIA GPU seen on this machine", remedy


def _reinstall_remedy(around: Surroundings) -> str:
    if not around.is_jetson:
        return "reinstall the NVIDIA driver"
    if any(path.startswith(cudadriver.FOLDER_R39) for path in around.libraries):
        return "sudo systemctl restart nv-load-gpu-libs, which puts the right variant in the loader's path"
    return "sudo apt install --reinstall nvidia-l4t-cuda"


def judge_error(error: CudaError, around: Surroundings) -> tuple[Status, str, str]:
    """What a failed call means here: (status, reason, remedy). Groups come first: they explain most of the numbers."""
    said = str(error) + (f"; JIT log: {cut(error.log, 400)}" if error.log else "")
    if error.number in ACCESS_CODES and around.blocked:
        listed = "; ".join(f"{', '.join(paths)} (group {group})" for group, paths in around.blocked.items())
        groups = [group for group in around.blocked if group in ("video", "render")] or ["video", "render"]
        remedy = (
            f"sudo usermod -aG {','.join(groups)} USER and log in again; "
            f"for a service: SupplementaryGroups={' '.join(groups)}; "
            "in a container: --group-add with the host's group numbers"
        )
        plain = f"{error.call}: {error.name} ({error.number})"
        return Status.UNKNOWN, f"{plain}: this user can't open {listed}", remedy
    if error.number in ACCESS_CODES and around.gpu_dead:
        reason = f"{said}; {gpu_nodes.IGPU} holds nothing but 'power': the GPU did not start at boot"
        return Status.BROKEN, reason, "switch the power off and on again; a reboot is not enough"
    if error.number == cudadriver.NO_DEVICE and around.visible is not None and (around.gpus or around.has_nodes):
        return Status.BROKEN, f"{said}; {VISIBLE}={around.visible!r} may hide it", f"unset {VISIBLE}"
    if error.number == cudadriver.NO_DEVICE and around.is_jetson and not around.has_nodes:
        return Status.ABSENT, f"{said}; there are no device nodes of the GPU", RUNTIME_REMEDY
    if error.number == cudadriver.NO_DEVICE and not around.is_jetson and not around.gpus:
        remedy = "nothing to do, unless a GPU is fitted: then look at lspci and dmesg"
        return Status.ABSENT, f"{said}; the driver is installed, no NVIDIA GPU is on PCI", remedy
    return Status.BROKEN, said, error.remedy


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of running on every device: facts of the first that ran, and the first error."""

    evidence: tuple[Evidence, ...]
    facts: dict[str, Fact]
    error: CudaError | None


def _execute(driver: CudaDriver, infos: list[DeviceInfo], devices: tuple[Device, ...]) -> Run:
    given, ptx = saxpy.problem(), saxpy.kernel("saxpy.ptx")
    evidence: list[Evidence] = []
    facts: dict[str, Fact] = {}
    first: CudaError | None = None
    for info, device in zip(infos, devices, strict=True):
        try:
            result = cudadriver.run_saxpy(driver, info.index, ptx, saxpy.FACTOR, given.x, given.y)
        except CudaError as error:
            first = first or error
            evidence.append(saxpy.failed(given, device, str(error)))
            continue
        evidence.append(saxpy.compared(given, device, result.values, result.elapsed_s, "device"))
        facts.setdefault("cuda_memory_free_bytes", result.memory_free_bytes)
        facts.setdefault("cuda_memory_total_bytes", result.memory_total_bytes)
    return Run(evidence=tuple(evidence), facts=facts, error=first)


def _device(info: DeviceInfo, version: str) -> Device:
    return Device(
        index=info.index,
        name=info.name,
        kind=DeviceKind.GPU,
        vendor="NVIDIA",
        driver=version,
        api_version=info.capability,
        memory_bytes=info.memory_bytes,
    )


def _device_facts(devices: list[DeviceInfo]) -> dict[str, Fact]:
    first = devices[0]
    return {
        "compute_capability": first.capability,
        "sm_count": first.sm_count,  # the power mode may switch some off
        "clock_max_hz": first.clock_hz or None,
        "integrated": first.integrated,
        "device_count": len(devices),
    }


def _file_facts(host: Host, around: Surroundings) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"libcuda_files": around.libraries, "pycuda_version": None}
    if not host.recorded:
        facts["cuda_visible_devices"] = around.visible
        facts["pycuda_version"] = _installed_version("pycuda")  # a fact only, see docs/decisions/0002
    return facts


def _installed_version(package: str) -> str | None:
    """By the folder that pip or apt leave; importing `importlib.metadata`, which says the same, takes 20 ms."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if match := re.fullmatch(rf"{package}-([0-9][^-]*)(?:-py[\d.]+\S*)?\.(?:dist|egg)-info", name, re.I):
                    return match[1]
    return None


def check(host: Host) -> Finding:
    """Load libcuda, run the kernel on every device and compare.

    Returns: WORKS when a device computed the right numbers (a sentence names others that did not); BROKEN on wrong
        numbers and failed calls; UNKNOWN when this user may not open the device, and for a recorded device; ABSENT
        without a driver or GPU.
    """
    around = read_surroundings(host)
    facts = _file_facts(host, around)
    if not host.executes:
        return _finding(Status.UNKNOWN, host.not_executed, facts=facts)
    try:
        driver = CudaDriver(cudadriver.load(host, around.soc))
    except OSError as error:
        return _finding(*judge_not_loaded(str(error), around), facts)
    facts["libcuda_loaded"] = cuda_libraries.loaded_path(host, "libcuda")
    try:
        driver.start()
        version, infos = driver.version(), driver.devices()
        devices = tuple(_device(info, version) for info in infos)
        with witness.Watch(host) as watch:
            run = _execute(driver, infos, devices)
    except CudaError as error:
        return _finding(*judge_error(error, around), facts)
    except SymbolMissing as error:
        return _finding(Status.BROKEN, str(error), _reinstall_remedy(around), facts)
    facts.update(_device_facts(infos) | run.facts)
    status, reason = saxpy.verdict(run.evidence)
    remedy = ""
    if status is Status.BROKEN and run.error:
        status, reason, remedy = judge_error(run.error, around)
    said = watch.witnesses(run.evidence, (os.getpid(),), witness.on_cpu(saxpy.problem(), run.evidence))
    told = functools.partial(_finding, version=version, devices=devices, evidence=run.evidence, witnesses=said)
    return told(status, reason, remedy, facts)
