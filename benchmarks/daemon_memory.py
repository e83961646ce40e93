"""Memory of the idle daemon: PSS of `/proc/PID/smaps_rollup`, sampled while it is connected to a broker.

python -m benchmarks.daemon_memory --minutes 10 --warm-up-minutes 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent.broker import Broker

SAMPLE_EVERY_S = 10.0


def pss_kib(pid: int) -> int:
    """Proportional set size of a process in KiB. Source: proc(5)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def bare_pss_kib() -> int:
    """PSS of a Python that has only started, for comparison."""
    code = "print(next(l.split()[1] for l in open('/proc/self/smaps_rollup') if l.startswith('Pss:')))"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def measure(minutes: float, warm_up_minutes: float) -> dict[str, float]:
    """Run a daemon against the embedded broker and sample it.

    Returns: median, smallest and largest PSS in MiB, the number of samples, and PSS of a bare Python.
    """
    with tempfile.TemporaryDirectory() as folder, Broker.start() as broker:
        config = Path(folder) / "edge-agent.toml"
        config.write_text(
            f'[agent]\ndevice_id = "bench"\nstate_dir = "{folder}/state"\nmodels_dir = "{folder}"\n'
            f'[mqtt]\nhost = "{broker.host}"\nport = {broker.port}\n'
        )
        with open(Path(folder) / "log", "wb") as log:
            command = [sys.executable, "-m", "agent", "daemon", "--config", str(config)]
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            time.sleep(warm_up_minutes * 60)
            samples: list[float] = []
            end_s = time.monotonic() + minutes * 60
            while not samples or time.monotonic() < end_s:
                samples.append(pss_kib(daemon.pid) / 1024)
                time.sleep(min(SAMPLE_EVERY_S, max(0.0, end_s - time.monotonic())))
        finally:
            daemon.terminate()
            daemon.wait(15)
    return {
        "pss_median_mib": round(statistics.median(samples), 2),
        "pss_min_mib": round(min(samples), 2),
        "pss_max_mib": round(max(samples), 2),
        "samples": len(samples),
        "bare_python_pss_mib": round(bare_pss_kib() / 1024, 2),
    }


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--warm-up-minutes", type=float, default=5.0)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.minutes, arguments.warm_up_minutes), indent=1))


if __name__ == "__main__":
    main()
