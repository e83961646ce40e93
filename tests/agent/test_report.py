from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import msgspec
import pytest

from agent import schemas
from agent.report import REPORT_BYTES, build_report, derive_device_id, known_subjects, survey_report
from probes.contract import CapabilityReport, Device, DeviceKind, Evidence, Finding, Status
from probes.host import Host
from probes.listing import PROBE_PATH

MACHINE_ID = "0123456789abcdef0123456789abcdef"
HARDWARE = Finding(
    subject="hardware",
    layer=0,
    status=Status.WORKS,
    facts={"model": "Orin Nano", "soc": "tegra234", "serial": "1421124000001", "is_jetson": True, "module": None},
)
JETPACK = Finding(subject="jetpack", layer=1, status=Status.WORKS, facts={"l4t": "36.4.3", "jetpack": "6.2"})
OPENCL = Finding(subject="opencl", layer=2, status=Status.ABSENT, reason="PLATFORM_NOT_FOUND_KHR")


def device(tmp_path: Path, serial: str = "", hostname: str = "tegra-ubuntu", machine_id: str = MACHINE_ID) -> Host:
    """A recorded device of which only what names it is there."""
    files = {"etc/hostname": hostname + "\n", "etc/machine-id": machine_id + "\n"}
    if serial:
        files["proc/device-tree/serial-number"] = serial + "\0"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(tmp_path)


# ---- the device's name (clones share machine-id and host name) ------------------------------------------------------


def test_the_configured_name_goes_before_all_others(tmp_path: Path) -> None:
    assert build_report([HARDWARE], device(tmp_path), device_id="rack-1").device.id == "rack-1"


def test_clones_differ_by_their_serial_numbers(tmp_path: Path) -> None:
    one, two = device(tmp_path / "1", "1421124000001"), device(tmp_path / "2", "1421124000002")
    assert derive_device_id(one) == "jetson-1421124000001"
    assert derive_device_id(two) == "jetson-1421124000002"


def test_a_new_host_name_does_not_make_a_new_device(tmp_path: Path) -> None:
    before = derive_device_id(device(tmp_path / "1", "1421124000004"))
    assert derive_device_id(device(tmp_path / "2", "1421124000004", hostname="renamed-host")) == before
    without = derive_device_id(device(tmp_path / "3"))
    assert derive_device_id(device(tmp_path / "4", hostname="renamed-host")) == without


def test_a_serial_number_of_zeros_is_none(tmp_path: Path) -> None:
    name = derive_device_id(device(tmp_path, "0000000000000000"), serial="0000000000000000")
    assert name.startswith("edge-")
    assert "0000000000" not in name


def test_the_machine_id_itself_does_not_leave_the_device(tmp_path: Path) -> None:
    name = derive_device_id(device(tmp_path))
    assert name.startswith("edge-")
    assert len(name) == len("edge-") + 12
    assert name.removeprefix("edge-") not in MACHINE_ID
    assert name != derive_device_id(device(tmp_path, machine_id="f" + MACHINE_ID[1:]))


@pytest.mark.parametrize("machine_id", ["", "uninitialized", "0" * 32])
def test_the_host_name_is_taken_when_there_is_no_machine_id(tmp_path: Path, machine_id: str) -> None:
    assert derive_device_id(device(tmp_path, machine_id=machine_id, hostname="Lab/7 ")) == "edge-lab-7"


def test_a_device_that_says_nothing_gets_a_name_all_the_same(tmp_path: Path) -> None:
    assert derive_device_id(Host(tmp_path)) == "edge-unnamed"


# ---- the report ----------------------------------------------------------------------------------------------------


def test_identity_is_what_the_hardware_and_jetpack_findings_say(tmp_path: Path) -> None:
    identity = build_report([JETPACK, HARDWARE], device(tmp_path)).device
    assert (identity.model, identity.soc, identity.module) == ("Orin Nano", "tegra234", "")
    assert (identity.l4t, identity.jetpack, identity.serial) == ("36.4.3", "6.2", "1421124000001")


def test_findings_are_in_layer_order_and_explained(tmp_path: Path) -> None:
    findings = build_report([OPENCL, JETPACK, HARDWARE], device(tmp_path)).findings
    assert [finding.subject for finding in findings] == ["hardware", "jetpack", "opencl"]
    assert findings[2].facts["cause"] == "NVIDIA ships no OpenCL with L4T"


def test_the_time_is_utc_and_a_recorded_device_s_clock_is_not_judged(tmp_path: Path) -> None:
    report = build_report([], device(tmp_path))
    assert report.taken_at.endswith("Z")
    assert report.clock_synchronised is None


def test_readings_are_shortened_until_the_report_fits_and_proofs_stay_whole(tmp_path: Path) -> None:
    proof = Evidence(executed="saxpy", device="Orin", value="right" * 20, expected="right" * 20)
    reading = Evidence(executed="read", value="x" * 2000)
    many = [
        Finding(subject=f"probe{n:02}", layer=2, status=Status.WORKS, evidence=(proof, reading, reading))
        for n in range(30)
    ]
    report = build_report(many, device(tmp_path))
    assert len(msgspec.json.encode(report.findings)) <= REPORT_BYTES
    assert all(finding.evidence[0] == proof for finding in report.findings)
    assert report.findings[0].evidence[1].value.startswith("…x")


def test_readings_of_a_report_that_fits_are_left_alone(tmp_path: Path) -> None:
    one = Finding(subject="a", layer=2, status=Status.WORKS, evidence=(Evidence(executed="read", value="x" * 2000),))
    assert build_report([one], device(tmp_path)).findings == (one,)


def test_the_fingerprint_changes_with_a_capability_and_not_with_a_reading(tmp_path: Path) -> None:
    host = device(tmp_path)
    before = build_report([HARDWARE, OPENCL], host).fingerprint
    reading = msgspec.structs.replace(HARDWARE, facts={**HARDWARE.facts, "memory_free_bytes": 1}, duration_s=9)
    assert build_report([OPENCL, reading], host).fingerprint == before
    found = Device(index=0, name="pthread", kind=DeviceKind.CPU)
    works = msgspec.structs.replace(OPENCL, status=Status.WORKS, devices=(found,))
    assert build_report([HARDWARE, works], host).fingerprint != before


# ---- a real survey -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> CapabilityReport:
    return survey_report(device(tmp_path_factory.mktemp("device"), "1421124000001"))


def test_a_survey_has_every_check_and_nothing_twice(recorded: CapabilityReport) -> None:
    subjects = [finding.subject for finding in recorded.findings]
    assert sorted(subjects) == sorted(known_subjects())
    assert {"hardware", "vulkan", "onnxruntime/cpu"} <= set(subjects)


def test_on_a_recorded_device_no_runtime_of_this_machine_is_executed(recorded: CapabilityReport) -> None:
    runners = [finding for finding in recorded.findings if "/" in finding.subject]
    assert runners
    assert {(f.status, f.reason) for f in runners} == {(Status.UNKNOWN, "a recorded device: nothing is executed")}


def test_a_report_reads_back_as_it_was_written(recorded: CapabilityReport) -> None:
    assert msgspec.json.decode(msgspec.json.encode(recorded), type=CapabilityReport) == recorded


def test_a_report_fits_the_schema_that_is_checked_in(recorded: CapabilityReport) -> None:
    schema = json.loads((schemas.FOLDER / "capability-report.json").read_text(encoding="utf-8"))
    document = json.loads(msgspec.json.encode(recorded))
    jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    document["findings"][0]["status"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def test_a_survey_of_named_subjects_has_these_only_and_tells_each() -> None:
    told: list[str] = []
    report = survey_report(subjects=("memory", "hardware"), on_finding=lambda finding: told.append(finding.subject))
    assert [finding.subject for finding in report.findings] == ["hardware", "memory"]
    assert sorted(told) == ["hardware", "memory"]
    assert report.device.architecture


def test_the_host_s_environment_is_that_of_its_checks(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""Mine."""\nimport os\nfrom probes.contract import Finding, Status\nLAYER = 3\n'
        "def check(host):\n"
        '    return Finding(subject="mine", layer=LAYER, status=Status.WORKS, version=os.environ["MINE"])\n'
    )
    environ = {**os.environ, PROBE_PATH: str(tmp_path), "MINE": "7"}
    report = survey_report(Host(environ=environ), subjects=("mine",))
    assert [(finding.status, finding.version) for finding in report.findings] == [(Status.WORKS, "7")]


# ---- schemas -------------------------------------------------------------------------------------------------------


def test_the_schemas_that_are_checked_in_are_what_the_code_says() -> None:
    assert schemas.differences(schemas.FOLDER) == []


def test_a_changed_a_missing_and_a_stray_schema_are_told(tmp_path: Path) -> None:
    schemas.write(tmp_path)
    assert schemas.differences(tmp_path) == []
    (tmp_path / "finding.json").write_text("{}")
    (tmp_path / "plan.json").unlink()
    (tmp_path / "old.json").write_text("{}")
    assert schemas.differences(tmp_path) == [
        f"{tmp_path / 'finding.json'} is not what the code says",
        f"{tmp_path / 'plan.json'} is missing",
        f"{tmp_path / 'old.json'} describes nothing",
    ]


def test_a_serial_number_is_not_read_from_outside_of_a_recorded_device(tmp_path: Path) -> None:
    outside = tmp_path / "serial"
    outside.write_text("1420021000000\0")
    tree = tmp_path / "device" / "proc" / "device-tree"
    tree.mkdir(parents=True)
    (tree / "serial-number").symlink_to(outside)
    assert "1420021000000" not in derive_device_id(Host(tmp_path / "device"))
