"""Thermal: temperatures by zone, whether something throttles now or did since the start, and the fan.

A zone that answers -256000 or an error is a block that is switched off, which is None and no fault. The PMIC's zone
gives a constant 50 or 100 on several modules and is left out.

Source: Linux Documentation/driver-api/thermal/sysfs-api.rst; NVIDIA's soctherm_oc hwmon (JetPack 6 and later).
"""

from __future__ import annotations

from probes.contract import Fact, Finding, Status
from probes.host import Host

LAYER = 0
OFF_MILLI_C = -255_000
CONSTANT = ("PMIC",)  # a reading that never moves is none
NEAR_C = 5.0  # that near to its limit a zone is told


def check(host: Host) -> Finding:
    """Read zones, limits, throttling and fan.

    Returns: WORKS when a zone answered; ABSENT when the machine shows none, as most virtual machines do.
    """
    zones, limits = read_zones(host)
    throttling = read_throttling(host)
    events = read_events(host)
    known = [value for value in zones.values() if value is not None]
    facts: dict[str, Fact] = {
        "temperatures_c": zones,
        "hottest_c": max(known, default=None),
        "throttling": [*throttling],
        "overcurrent_events": events,
        **read_fan(host),
    }
    if not zones:
        reason = "the kernel shows no thermal zone on this machine"
        return Finding(subject="thermal", layer=LAYER, status=Status.ABSENT, reason=reason, facts=facts)
    reason = "; ".join(told for told in (_throttled(throttling), _near(zones, limits), _events(events)) if told)
    remedy = "cool the device, give it a stronger supply, or choose a lower power mode; measure again then"
    return Finding(
        subject="thermal",
        layer=LAYER,
        status=Status.WORKS,
        reason=reason,
        remedy=remedy if reason else "",
        facts=facts,
    )


def read_zones(host: Host) -> tuple[dict[str, float | None], dict[str, float]]:
    """(°C by zone, critical °C by zone); names that occur twice get their number."""
    zones: dict[str, float | None] = {}
    limits: dict[str, float] = {}
    for folder in host.glob("/sys/class/thermal/thermal_zone*"):
        name = host.line(f"{folder}/type") or folder.rpartition("/")[2]
        if any(name.upper().startswith(constant) for constant in CONSTANT):
            continue
        name = name if name not in zones else f"{name} {folder.rpartition('thermal_zone')[2]}"
        milli = host.integer(f"{folder}/temp")
        zones[name] = None if milli is None or milli <= OFF_MILLI_C else milli / 1000
        for trip in host.glob(f"{folder}/trip_point_*_type"):
            limit = host.integer(trip.replace("_type", "_temp"))
            if host.line(trip) == "critical" and limit is not None and limit > 0:
                limits[name] = limit / 1000
    return zones, limits


def read_throttling(host: Host) -> list[str]:
    """Alerts that throttle at this moment, by the names of their cooling devices."""
    devices = ((host.line(f"{f}/type") or "", f) for f in host.glob("/sys/class/thermal/cooling_device*"))
    return [n for n, f in devices if n.endswith("-throttle-alert") and (host.integer(f"{f}/cur_state") or 0) > 0]


def read_events(host: Host) -> dict[str, int | None]:
    """Over-current events since the start, by counter; {} where the kernel does not count."""
    folders = [f for f in host.glob("/sys/class/hwmon/hwmon*") if host.line(f"{f}/name") == "soctherm_oc"]
    paths = [path for folder in folders for path in host.glob(f"{folder}/oc*_event_cnt")]
    return {path.rpartition("/")[2].removesuffix("_event_cnt"): host.integer(path) for path in paths}


def read_fan(host: Host) -> dict[str, Fact]:
    """The fan's duty (0 to 255) and speed; None without a fan, and 0 for one that stands still."""
    pwm = host.integer("/sys/devices/pwm-fan/target_pwm")  # JetPack 4
    rpm = None
    for folder in host.glob("/sys/class/hwmon/hwmon*"):
        name = host.line(f"{folder}/name")
        pwm = host.integer(f"{folder}/pwm1") if name == "pwmfan" else pwm
        rpm = host.integer(f"{folder}/rpm") if name == "pwm_tach" else rpm
    return {"fan_pwm": pwm, "fan_rpm": rpm}


def _throttled(names: list[str]) -> str:
    return f"it throttles now: {', '.join(names)}" if names else ""


def _near(zones: dict[str, float | None], limits: dict[str, float]) -> str:
    near = [
        f"{name} {value:g} °C (critical {limits[name]:g})"
        for name, value in zones.items()
        if value is not None and name in limits and value >= limits[name] - NEAR_C
    ]
    return f"near its limit: {', '.join(near)}" if near else ""


def _events(events: dict[str, int | None]) -> str:
    counted = [f"{name} {count}" for name, count in events.items() if count]
    return f"throttled by over-current since the start: {', '.join(counted)} times" if counted else ""
