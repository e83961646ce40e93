"""A check's own folder for what it and its drivers write: temporary files and compiled kernels. It goes with the check.

Source: environment variables of XDG base directories, Mesa, PoCL (pocl manual), CUDA C++ Programming Guide, NVIDIA's
driver README (OpenGL environment variables).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

CACHES = {  # variable: folder below ours
    "XDG_CACHE_HOME": "cache",  # Mesa's shaders, PoCL's kernels, pyopencl, GStreamer's registry
    "CUDA_CACHE_PATH": "cuda",
    "MESA_SHADER_CACHE_DIR": "mesa",
    "MESA_GLSL_CACHE_DIR": "mesa",  # the same before Mesa 22
    "POCL_CACHE_DIR": "pocl",
    "__GL_SHADER_DISK_CACHE_PATH": "nvidia",
}
ALWAYS = ("XDG_CACHE_HOME", "CUDA_CACHE_PATH", "__GL_SHADER_DISK_CACHE_PATH")


@contextlib.contextmanager
def scratch(environ: Mapping[str, str], *, keep_caches: bool) -> Iterator[dict[str, str]]:
    """The environment with a new folder in place of shared ones; it is removed at the end.

    Args:
        environ: the check's.
        keep_caches: leave the drivers' caches where they are: what was compiled is used again.

    Returns: where no folder can be made (a full or read-only disk), the environment as it was.
    """
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="edge-agent-check-", dir=environ.get("TMPDIR") or None)
    except OSError:
        yield dict(environ)
        return
    changed = {"TMPDIR": folder, "TEMP": folder, "TMP": folder}
    if not keep_caches:
        names = [name for name in CACHES if name in ALWAYS or name in environ]
        changed |= {name: f"{folder}/{CACHES[name]}" for name in names}
    try:
        yield {**environ, **changed}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
