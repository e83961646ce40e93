"""Installs llama-cpp-python into this environment, building its wheel once: PyPI has none for any machine.

The wheel is kept in $EDGE_AGENT_CACHE (default: $XDG_CACHE_HOME/edge-agent or ~/.cache/edge-agent), one
folder per set of build flags. GGML_NATIVE is off: a native build with gcc 12 dies with SIGILL on CPUs with
AMX. CUDA is on where nvcc is found beside an NVIDIA GPU.
Ends with 0 when the runtime is installed, 1 with the reason otherwise.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

VERSION = "0.3.36"
CUDA_ARCHITECTURES = {"tegra194": "72", "tegra234": "87", "tegra264": "110"}


def main() -> int:
    """Install the wheel, from the cache or built now."""
    if installed_version() == VERSION:
        return 0
    flags = build_flags()
    folder = cache_root() / "wheels" / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:12]
    wheel = next(iter(sorted(folder.glob(f"llama_cpp_python-{VERSION}-*.whl"))), None)
    if wheel is None:
        wheel = build(folder, flags)
        if wheel is None:
            return 1
    print(f"setup: installing llama-cpp-python {VERSION} from {wheel}", flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", str(wheel)]
    return subprocess.run(command, check=False).returncode


def installed_version() -> str:
    """The version in this environment, or ""."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return ""


def cache_root() -> Path:
    """Where wheels are kept, outside of the clone."""
    chosen = os.environ.get("EDGE_AGENT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-agent"


def build_flags() -> list[str]:
    """CMake flags for this machine."""
    flags = ["-DGGML_NATIVE=OFF"]
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    has_gpu = any(Path(p).exists() for p in ("/dev/nvmap", "/dev/nvidia0", "/proc/driver/nvidia/version"))
    if nvcc and has_gpu:
        flags += ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
        flags.append(f"-DCMAKE_CUDA_ARCHITECTURES={cuda_architecture()}")
    return flags


def cuda_architecture() -> str:
    """The one architecture of this Jetson, or "native" elsewhere."""
    try:
        compatible = Path("/proc/device-tree/compatible").read_text(errors="replace")
    except OSError:
        return "native"
    soc = re.search(r"tegra\d{3}", compatible)
    return CUDA_ARCHITECTURES.get(soc.group(), "native") if soc else "native"


def build(folder: Path, flags: list[str]) -> Path | None:
    """Build the wheel, showing how far the compiler is; None, with the reason printed, when it fails."""
    if shutil.which("g++") is None and shutil.which("c++") is None:
        print("setup: llama-cpp-python can't be built: no C++ compiler. By hand: sudo apt-get install g++")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "build.log"
    print(
        f"setup: building llama-cpp-python {VERSION} ({' '.join(flags)}): once, 5-11 minutes on 2 cores",
        flush=True,
    )
    jobs = str(len(os.sched_getaffinity(0)))
    environment = os.environ | {"CMAKE_ARGS": " ".join(flags), "CMAKE_BUILD_PARALLEL_LEVEL": jobs}
    # Built beside, then moved: an interrupted build leaves no half wheel behind.
    unfinished = folder / f"unfinished-{os.getpid()}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-v", "wheel", "--no-deps"]
    command += ["--wheel-dir", str(unfinished), f"llama-cpp-python=={VERSION}"]
    try:
        with open(log_path, "w", encoding="utf-8") as log:
            code = follow(command, environment, log)
        built = next(iter(sorted(unfinished.glob("*.whl"))), None)
        if code != 0 or built is None:
            print("\n".join(log_path.read_text(encoding="utf-8").splitlines()[-8:]))
            print(f"setup: llama-cpp-python could not be built (exit status {code}); the whole log: {log_path}")
            return None
        return Path(shutil.move(str(built), folder / built.name))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def follow(command: list[str], environment: dict[str, str], log: object) -> int:
    """Run the build, write its output to `log`, and print ninja's counter now and then."""
    start, told = time.monotonic(), 0.0
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            log.write(line)  # type: ignore[attr-defined]
            step = re.search(r"\[(\d+)/(\d+)\]", line)
            now = time.monotonic()
            if step and now - told > 10:
                told = now
                print(f"setup:   {step.group(1)} of {step.group(2)} steps, {now - start:.0f} s", flush=True)
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
