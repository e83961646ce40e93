"""Each software device of this machine, broken in turn, and what the finding says then: reason and remedy of the cause.

The machine itself is left alone: files are covered in a mount namespace of the check's own (`unshare -m`), for which
one must be root. Nothing is exchanged in the code: the installed loaders and drivers meet a broken machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from gpu_probe import PROJECT, environment, working

from probes.contract import Finding, Status

COVER_FILE, COVER_FOLDER, LIMIT = "mount --bind /dev/null {}", "mount -t tmpfs none {}", "ulimit -v 300000"
REINSTALL = "install the package that has the named library"
# what is broken, how, the check, its status, what the reason names, what the remedy says
BREAKAGES = [
    ("libvulkan.so.1", COVER_FILE, "vulkan", Status.BROKEN, "libvulkan.so.1: ", "apt-get install libvulkan1"),
    ("libvulkan_lvp.so", COVER_FILE, "vulkan", Status.BROKEN, "libvulkan_lvp.so: ", REINSTALL),
    ("/usr/share/vulkan/icd.d", COVER_FOLDER, "vulkan", Status.ABSENT, "no Vulkan driver is installed", "mesa-vulkan"),
    ("libpocl.so.2", COVER_FILE, "opencl", Status.BROKEN, "/libpocl.so.2", REINSTALL),
    ("/etc/OpenCL/vendors", COVER_FOLDER, "opencl", Status.ABSENT, "no OpenCL driver is installed", "pocl-opencl-icd"),
    ("libEGL.so.1", COVER_FILE, "gles", Status.BROKEN, "libEGL.so.1: ", "apt-get install libegl1"),
    ("libGLESv2.so.2", COVER_FILE, "gles", Status.BROKEN, "libGLESv2.so.2: ", "apt-get install"),
    ("libEGL_mesa.so.0", COVER_FILE, "gles", Status.BROKEN, "libEGL_mesa.so.0: ", REINSTALL),
    ("/usr/lib/*/dri", COVER_FOLDER, "gles", Status.BROKEN, "EGL_NOT_INITIALIZED", "libgl1-mesa-dri"),
    (
        "/usr/share/glvnd/egl_vendor.d",
        COVER_FOLDER,
        "gles",
        Status.ABSENT,
        "no EGL driver is installed",
        "libegl-mesa0",
    ),
    ("addresses", LIMIT, "vulkan", Status.BROKEN, "292 MiB of addresses only (ulimit -v)", "raise the limit"),
    ("addresses", LIMIT, "opencl", Status.UNKNOWN, "292 MiB of addresses only (ulimit -v)", "raise the limit"),
    ("addresses", LIMIT, "gles", Status.BROKEN, "292 MiB of addresses only (ulimit -v)", "raise the limit"),
    ("addresses", LIMIT, "webgpu", Status.BROKEN, "292 MiB of addresses only (ulimit -v)", "raise the limit"),
]


def broken(probe: str, statement: str) -> Finding:
    """The finding of `python -m probes`, isolation and all, on a machine on which the shell statement was run."""
    script = f'mount --make-rprivate / && {statement} && exec "$0" -m probes {probe}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable],
        env=environment({}),
        cwd=os.fspath(PROJECT),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr
    return msgspec.json.decode(done.stdout, type=Finding)


@pytest.fixture(autouse=True, scope="module")
def namespaces() -> None:
    allowed = (
        shutil.which("unshare")
        and not subprocess.run(
            ["unshare", "-m", "mount", "--make-rprivate", "/"], capture_output=True, check=False
        ).returncode
    )
    if not allowed:
        pytest.skip("no mount namespace can be made here (not root?): the software devices were not broken in turn")


def place(what: str) -> str:
    """The real path of a library or folder, or "" when it is not on this machine."""
    if what.startswith("/"):
        found = [*Path("/").glob(what[1:])]
        return str(found[0]) if found else ""
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = [line.rpartition("=> ")[2] for line in known.splitlines() if line.split(" ", 1)[0].strip() == what]
    return os.path.realpath(paths[0]) if paths else ""


@pytest.mark.parametrize(
    ("what", "how", "probe", "status", "named", "remedy"), BREAKAGES, ids=[f"{b[2]}-{b[0]}" for b in BREAKAGES]
)
def test_a_broken_software_device_is_told_by_its_cause(
    what: str, how: str, probe: str, status: Status, named: str, remedy: str
) -> None:
    if working(probe).status is not Status.WORKS:
        pytest.skip(f"{probe} does not work here even unbroken")
    where = "" if how is LIMIT else place(what)
    if how is not LIMIT and not where:
        pytest.skip(f"{what} is not on this machine: {probe} was not broken by it")
    found = broken(probe, how.format(where))
    assert found.status is status, found.reason
    assert named in found.reason
    assert remedy in found.remedy


def test_webgpu_without_its_vulkan_driver_says_that_it_went_by_opengl() -> None:
    driver = place("libvulkan_lvp.so")
    if working("webgpu").status is not Status.WORKS or not driver:
        pytest.skip("WebGPU does not work here by way of lavapipe: its driver was not taken away")
    found = broken("webgpu", COVER_FILE.format(driver))
    assert found.status is Status.WORKS
    assert "by OpenGL, which says nothing about Vulkan" in found.reason
