"""The checks of all runners, as `probes.isolation` executes them; no vendor library is imported for this."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from probes.isolation import Check
from runners.registry import listed

DEADLINE_S = 90.0  # a driver's first use compiles its kernels: 10 s for llama.cpp on lavapipe, more on a small board
COST_S = 2.0
GPU_PARTS = ("driver", "pci", "l4t", "nodes", "python")
CUDA_PARTS = (*GPU_PARTS, "libcuda", "cuda_libraries", "cudnn_libraries")
RESTS_ON: Mapping[str, tuple[str, ...]] = {  # by backend
    "cpu": ("python",),
    "cuda": CUDA_PARTS,
    "tensorrt": (*CUDA_PARTS, "tensorrt", "tensorrt_libraries"),
    "vulkan": (*GPU_PARTS, "mesa", "vulkan", "vulkan_libraries"),
}
RESTS_ON_USUALLY = (*GPU_PARTS, "packages")
MEMORY_BYTES = 6 << 30  # what is resident of cuBLAS, cuDNN and TensorRT's builder counts as well


def subjects() -> list[tuple[str, int, str]]:
    """Subject, layer and backend of each check; no runner is imported for it."""
    return [(f"{one.name}/{backend}", one.layer, backend) for one in listed() for backend in one.backends]


def runner_checks() -> list[Check]:
    """One check per runner and backend: it executes the runner's bundled model in a process of its own."""
    return [
        Check(
            subject=subject,
            layer=layer,
            argv=(sys.executable, "-m", "runners", subject, "--child"),
            deadline_s=DEADLINE_S,
            memory_bytes=MEMORY_BYTES,
            cost_s=COST_S,
            rests_on=RESTS_ON.get(backend, RESTS_ON_USUALLY),
            uses_gpu=backend != "cpu",
            keep_caches=True,  # a runtime's kernels can take minutes to compile, and the next run needs the same ones
        )
        for subject, layer, backend in subjects()
    ]
