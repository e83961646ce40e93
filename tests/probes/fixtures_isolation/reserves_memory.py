"""Reserves 64 GiB of address space without touching it, as CUDA does, and answers after a while."""

from __future__ import annotations

import mmap
import time

from probes.contract import Finding, Status

LAYER = 2
MAP_NORESERVE = 0x4000  # asm-generic/mman.h; Python names it since 3.13


def check(host):
    reserved = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    time.sleep(0.4)
    return Finding(subject="reserves_memory", layer=LAYER, status=Status.WORKS, facts={"bytes": len(reserved)})
