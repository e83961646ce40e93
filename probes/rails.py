"""Power rails: INA3221 and INA238 sensors in both layouts of the kernel, read without root.

JetPack 4 and 5 have `ina3221x` with IIO files; later kernels `ina3221` with hwmon. Numbers of hwmon change from boot to
boot, so drivers and names count, never an index. USB-C entries (ucsi) are no rails.

Source: facts of recorded devices and tests/fixtures/cases/DT-11; Linux Documentation/hwmon/ina3221.rst and ina238.rst.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from probes.host import Host

DRIVERS = "/sys/bus/i2c/drivers"
HWMON = (f"{DRIVERS}/ina3221*/*/hwmon/hwmon*", "/sys/bus/i2c/devices/*/hwmon/hwmon*", "/sys/class/hwmon/hwmon*")
IIO = f"{DRIVERS}/ina3221*/*/iio:device*"
SENSORS = ("ina3221", "ina238")
CHANNELS = (1, 2, 3)  # 4 to 7 are shunt voltages and their sum
TOTALS = ("VDD_IN", "VIN", "POM_5V_IN", "VDD_SYS_IN")  # rails that feed all the others
UNCONNECTED = "NC"


class Rail(msgspec.Struct, frozen=True, kw_only=True):
    """One rail: mV, mA and mW now; None where the sensor did not answer."""

    name: str
    millivolts: int | None
    milliamps: int | None
    milliwatts: int | None


def read_rails(host: Host) -> list[Rail]:
    """Every connected rail once, in the kernel's order; [] without a sensor."""
    rails: dict[str, Rail] = {}
    for pattern in HWMON:
        for folder in host.glob(pattern):
            for rail in _read_hwmon(host, folder):
                rails.setdefault(rail.name, rail)
    for folder in host.glob(IIO):
        for rail in _read_iio(host, folder):
            rails.setdefault(rail.name, rail)
    rails.pop(UNCONNECTED, None)
    return list(rails.values())


def _read_hwmon(host: Host, folder: str) -> list[Rail]:
    sensor = host.line(f"{folder}/name") or host.line(f"{folder.rpartition('/hwmon/')[0]}/name")
    if not sensor and folder.startswith(f"{DRIVERS}/ina3221"):
        sensor = "ina3221"  # the driver's own folder says it too
    if sensor not in SENSORS:
        return []
    rails = []
    for channel in CHANNELS:
        label = host.line(f"{folder}/in{channel}_label")
        if sensor == "ina238" and channel == 1:
            label = label or "VIN"  # the board's input on Thor; its driver gives no label
        if not label:
            continue
        volts, amps = (host.integer(f"{folder}/{kind}{channel}_input") for kind in ("in", "curr"))
        microwatts = host.integer(f"{folder}/power{channel}_input")
        rails.append(_rail(label, volts, amps, None if microwatts is None else microwatts // 1000))
    return rails


def _read_iio(host: Host, folder: str) -> list[Rail]:
    rails = []
    for channel in range(3):
        label = host.line(f"{folder}/rail_name_{channel}")
        if label:
            readings = (host.integer(f"{folder}/in_{kind}{channel}_input") for kind in ("voltage", "current", "power"))
            rails.append(_rail(label, *readings))
    return rails


def _rail(name: str, volts: int | None, amps: int | None, watts: int | None) -> Rail:
    if watts is None and volts is not None and amps is not None:
        watts = volts * amps // 1000
    return Rail(name=name, millivolts=volts, milliamps=amps, milliwatts=watts)


def total(rails: Sequence[Rail]) -> tuple[int | None, str]:
    """Draw of the whole board in mW, and where that is from: the input's rail, or the sum where there is no such rail.

    Returns: (None, "") without rails; (None, source) when a reading that it takes is missing.
    """
    for name in TOTALS:
        for rail in rails:
            if rail.name == name:
                return rail.milliwatts, f"rail {name}"
    if not rails:
        return None, ""
    parts = [rail.milliwatts for rail in rails]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None, f"sum of {', '.join(rail.name for rail in rails)}"
