"""Power: mode by its name, clocks and whether they are locked, rails in mW, engines; read from sysfs without root.

Source: `probes/nvpmodel.py`, `probes/clocks.py`, `probes/rails.py`, `probes/tegrastats.py`, each with its own.
"""

from __future__ import annotations

from probes import clocks, l4t, nvpmodel, rails, tegrastats
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.host import Host

LAYER = 0
TEGRASTATS = ("tegrastats", "--interval", "100")


def check(host: Host) -> Finding:
    """Read what the device may draw, draws, and how fast it is allowed to be.

    Returns: WORKS when anything could be read; ABSENT on a machine without any of it: readings are then not available.
    """
    mode, gpu, found = nvpmodel.read_power_mode(host), clocks.read_gpu(host), rails.read_rails(host)
    line = _read_line(host)
    facts = _mode_facts(mode) | _clock_facts(host, gpu) | _rail_facts(found, line) | _engine_facts(line)
    evidence = (Evidence(executed="tegrastats", value=cut(line.unknown)),) if line and line.unknown else ()
    if all(fact in (None, "", [], {}) for fact in facts.values()):
        reason = "power is not available: no power mode, no clock and no INA3221 or INA238 sensor on this machine"
        return Finding(subject="power", layer=LAYER, status=Status.ABSENT, reason=reason, facts=facts)
    reason = "" if found or facts["power_total_mw"] is not None else "power is not available: no sensor was found"
    if mode.modes and not mode.name:
        reason = f"the power mode is not known: {nvpmodel.STATE} does not name one of {nvpmodel.CONFIGURATION}"
    return Finding(
        subject="power",
        layer=LAYER,
        status=Status.WORKS,
        reason=reason,
        facts=facts,
        evidence=evidence,
    )


def _read_line(host: Host) -> tegrastats.Line | None:
    """One line of tegrastats on a Jetson, as it alone knows the engines; None without."""
    if not l4t.is_jetson(host):
        return None
    text = host.run(["tegrastats"]).stdout if host.recorded else host.first_line([*TEGRASTATS])
    return tegrastats.parse_line(text.partition("\n")[0]) if text.strip() else None


def _mode_facts(mode: nvpmodel.PowerMode) -> dict[str, Fact]:
    return {
        "power_mode": mode.name or None,
        "power_mode_id": mode.id,
        "power_mode_default": mode.modes.get(-1 if mode.default is None else mode.default),
        "power_modes": [f"{number}: {name}" for number, name in sorted(mode.modes.items())],
    }


def _clock_facts(host: Host, gpu: clocks.GpuClock | None) -> dict[str, Fact]:
    low_hz, high_hz = clocks.read_cpu_limits_hz(host)
    is_locked = None
    if gpu and gpu.min_hz is not None and gpu.max_hz is not None:
        is_locked = gpu.min_hz == gpu.max_hz
    return {
        "gpu_clock_node": gpu.node if gpu else None,
        "gpu_clock_hz": gpu.now_hz if gpu else None,
        "gpu_clock_min_hz": gpu.min_hz if gpu else None,
        "gpu_clock_max_hz": gpu.max_hz if gpu else None,
        "gpu_governor": (gpu.governor or None) if gpu else None,
        "gpu_load_percent": gpu.load_percent if gpu else None,
        "gpu_rail_gated": gpu.now_hz == 0 if gpu and gpu.now_hz is not None else None,
        "gpu_tpc_gated_mask": clocks.read_tpc_mask(host),
        "clocks_locked": is_locked,
        "cpu_clock_min_hz": low_hz,
        "cpu_clock_max_hz": high_hz,
    }


def _rail_facts(found: list[rails.Rail], line: tegrastats.Line | None) -> dict[str, Fact]:
    """The sensors' own values; where this kernel does not show them, those that tegrastats prints."""
    if not found and line:
        found = [
            rails.Rail(name=name, millivolts=None, milliamps=None, milliwatts=round(now))
            for name, (now, _) in line.rails_mw.items()
        ]
    total_mw, source = rails.total(found)
    return {
        "rails_mv": {rail.name: rail.millivolts for rail in found},
        "rails_ma": {rail.name: rail.milliamps for rail in found},
        "rails_mw": {rail.name: rail.milliwatts for rail in found},
        "power_total_mw": total_mw,
        "power_total_from": source or None,
    }


def _engine_facts(line: tegrastats.Line | None) -> dict[str, Fact]:
    engines = line.engines if line else {}
    memory = engines.get("EMC", tegrastats.Engine())
    others = {name: engine for name, engine in engines.items() if name not in ("GR3D", "EMC")}
    return {
        "emc_percent": memory.percent,
        "emc_mhz": memory.mhz[0] if memory.mhz else None,
        "engines_mhz": {name: 0 if e.off else e.mhz[0] if e.mhz else None for name, e in others.items()},
    }
