"""What is said of dpkg's database: as dpkg itself leaves it, as it is on Jetsons, damaged, locked and missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from gpu_probe import PROJECT, environment
from real_dpkg import FAILS, make

from probes import dpkg, packages
from probes.contract import Finding, Status
from probes.host import Host
from probes.l4t import major, read_release
from tests.recorded import build_device, build_files, device_names, read_device

STATUS = "/var/lib/dpkg/status"
JETSON = {"/proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0"}
BUILD = "20250107174145"
CORE = ("core", "init", "firmware", "cuda", "3d-core")
MIXED = "packages of more than one L4T: nvidia-l4t-core 36.4.3, but "
KERNEL = ("kernel", "kernel-dtbs", "kernel-oot-modules", "display-kernel")


def stanza(name: str, version: str = "1.0", status: str = "install ok installed", more: str = "") -> str:
    """One package as dpkg writes it."""
    return (
        f"Package: {name}\nStatus: {status}\nPriority: optional\nSection: libs\nInstalled-Size: 45\n"
        f"Maintainer: NVIDIA Corporation\nArchitecture: arm64\nVersion: {version}\n{more}"
        "Description: one line\n more\n .\n Package: no field, as it is indented\n"
    )


def l4t(
    names: tuple[str, ...] = CORE + KERNEL, release: str = "36.4.3", status: str = "install ok installed"
) -> list[str]:
    """L4T's packages of one release, with versions as in NVIDIA's lists."""
    return [
        stanza(f"nvidia-l4t-{n}", f"{'5.15.148-tegra-' if 'kernel' in n else ''}{release}-{BUILD}", status)
        for n in names
    ]


def without(*gone: str) -> list[str]:
    return l4t(tuple(name for name in CORE + KERNEL if name not in gone))


def judged(tmp_path: Path, stanzas: list[str], files: dict[str, str] | None = None) -> Finding:
    """The finding about a recorded device with these packages."""
    text = "\n".join([stanza("bash"), *stanzas, stanza("zlib1g")])
    return packages.check(build_files(tmp_path, {STATUS: text, **(files or {})}))


# ---- as dpkg itself leaves it -------------------------------------------------------------------------------------


def test_what_dpkg_leaves_half_done_is_named_with_the_remedy_that_mends_it(tmp_path: Path) -> None:
    database = make(tmp_path)
    assert packages.check(Host(database.root)).status is Status.UNKNOWN  # an empty file lists nothing
    broken = database.build("nvidia-l4t-bootloader", f"36.4.3-{BUILD}", files={"postinst": FAILS})
    waits = database.build("nvidia-l4t-kernel", f"5.15.148-tegra-36.4.3-{BUILD}", "Depends: nvidia-l4t-bootloader\n")
    database.run("-i", broken, waits, database.build("bash"))
    finding = packages.check(Host(database.root))
    assert finding.status is Status.BROKEN
    assert finding.reason == "half-configured: nvidia-l4t-bootloader; unpacked: nvidia-l4t-kernel"
    assert finding.remedy == "sudo dpkg --configure -a; sudo apt-get -f install"
    assert set(re.findall(r"^ (\S+) ", database.run("--audit"), re.M)) == {
        str(row).partition(":")[0]
        for row in finding.facts["unfinished"]  # type: ignore[union-attr]
    }
    (database.root / "var/lib/dpkg/info/nvidia-l4t-bootloader.postinst").write_text("#!/bin/sh\n")
    database.run("--configure", "-a")
    mended = packages.check(Host(database.root))
    assert (mended.status, mended.facts["installed_packages"]) == (Status.WORKS, 3), mended.reason


def test_a_dpkg_that_was_killed_leaves_its_journal_and_a_package_to_reinstall(tmp_path: Path) -> None:
    database = make(tmp_path)
    database.run("-i", database.build("bash"))
    killer = database.build("libcudnn9-cuda-12", "9.3.0.75-1", files={"preinst": "#!/bin/sh\nkill -9 $PPID\nsleep 1\n"})
    database.run("-i", killer)
    assert "libcudnn9" not in (database.root / "var/lib/dpkg/status").read_text()
    finding = packages.check(Host(database.root))
    assert finding.status is Status.BROKEN
    assert finding.reason == (
        "dpkg was interrupted: unmerged entries in /var/lib/dpkg/updates: 1; half-installed: libcudnn9-cuda-12"
    )
    assert finding.remedy.split("; ") == [
        "sudo dpkg --configure -a",
        "sudo apt-get install --reinstall libcudnn9-cuda-12",
        "sudo apt-get -f install",
    ]


def test_a_removal_that_failed_or_left_its_configuration_and_a_hold_are_told_and_not_accused(tmp_path: Path) -> None:
    database = make(tmp_path)
    stays = database.build("libnvinfer10", "10.3.0.30-1+cuda12.5", files={"prerm": FAILS})
    leaves = database.build("nvidia-container-runtime", files={"conffiles": "/etc/nc\n", "./etc/nc": "a\n"})
    database.run("-i", stays, leaves, database.build("libvulkan1"), database.build("vim"))
    database.run("--set-selections", stdin="libvulkan1 hold\nvim hold\n")
    database.run("-r", "libnvinfer10")
    database.run("-r", "nvidia-container-runtime")
    finding = packages.check(Host(database.root))
    assert finding.status is Status.WORKS
    assert finding.reason == "marked for removal, and still there: libnvinfer10; on hold: libvulkan1"
    assert "echo libnvinfer10 install | sudo dpkg --set-selections" in finding.remedy
    assert "sudo apt-mark unhold libvulkan1" in finding.remedy
    facts = finding.facts
    assert (facts["held"], facts["held_others"]) == (["libvulkan1"], 1)
    assert facts["removed_with_configuration"] == ["nvidia-container-runtime"]
    database.run("--set-selections", stdin="libnvinfer10 install\nlibvulkan1 install\n")
    assert packages.check(Host(database.root)).reason == ""


def test_triggers_that_wait_are_told_and_so_is_one_that_failed(tmp_path: Path) -> None:
    database = make(tmp_path)
    files = {"triggers": "interest-await t\n", "postinst": '#!/bin/sh\ntest "$1" != triggered\n'}
    database.run("-i", database.build("nvidia-l4t-initrd", files=files))
    awaits = database.build("nvidia-l4t-init", files={"triggers": "activate-await t\n"})
    database.run("--no-triggers", "-i", awaits)
    waiting = packages.check(Host(database.root))
    assert waiting.status is Status.BROKEN
    assert waiting.reason == "triggers-awaited: nvidia-l4t-init; triggers-pending: nvidia-l4t-initrd"
    database.run("--configure", "-a")
    assert packages.check(Host(database.root)).reason == "half-configured: nvidia-l4t-initrd"


def test_this_machine_s_packages_are_counted_as_dpkg_counts_them() -> None:
    if not shutil.which("dpkg-query"):
        pytest.skip("dpkg is not installed: no real database was read")
    for _ in range(3):  # somebody may be installing
        done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}\n"], capture_output=True, text=True)
        finding = packages.check(Host())
        if finding.facts["installed_packages"] == done.stdout.split().count("installed"):
            return
    raise AssertionError(f"dpkg counts {done.stdout.split().count('installed')}, we {finding.facts}")


def test_while_dpkg_runs_nothing_is_accused(tmp_path: Path) -> None:
    unshare = ["unshare", "-m", "mount", "--make-rprivate", "/"]
    if not shutil.which("unshare") or subprocess.run(unshare, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here (not root?): no probe was run beside a working dpkg")
    database = make(tmp_path)
    slow = database.build(
        "nvidia-l4t-core", f"36.4.3-{BUILD}", files={"postinst": "#!/bin/sh\ntouch $DPKG_ROOT/started\nsleep 60\n"}
    )
    with subprocess.Popen(database.argv("-i", slow), stdout=subprocess.DEVNULL, start_new_session=True) as working:
        try:
            end_s = time.monotonic() + 20
            while not (database.root / "started").exists() and time.monotonic() < end_s:
                time.sleep(0.05)
            busy = over(database.root)
        finally:
            os.killpg(working.pid, 9)
    assert busy.status is Status.UNKNOWN, busy
    assert busy.reason.startswith(f"packages are being changed by dpkg (process {working.pid}); ")
    assert busy.remedy == "wait until it has ended, then check again"
    killed = over(database.root)
    assert killed.status is Status.BROKEN
    assert "half-configured: nvidia-l4t-core" in killed.reason


def over(root: Path) -> Finding:
    """The finding on this machine with that database in place of its own, in a mount namespace of the check's."""
    script = (
        f'mount --make-rprivate / && mount --bind {root}/var/lib/dpkg /var/lib/dpkg && exec "$0" -m probes packages'
    )
    argv = ["unshare", "-m", "sh", "-c", script, sys.executable]
    done = subprocess.run(
        argv, env=environment({}), cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("{"), done.stderr
    return msgspec.json.decode(done.stdout, type=Finding)


# ---- L4T ----------------------------------------------------------------------------------------------------------


def test_a_whole_jetson_works(tmp_path: Path) -> None:
    found = judged(tmp_path, l4t(), {**JETSON, "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 1\n"})
    assert (found.status, found.reason, found.remedy) == (Status.WORKS, "", "")
    assert (found.facts["l4t_packages"], found.facts["l4t_missing"]) == ({"36.4.3": 9}, [])


@pytest.mark.parametrize("name", device_names())
def test_every_recorded_jetson_with_its_own_release_s_packages_works(tmp_path: Path, name: str) -> None:
    device = build_device(tmp_path, name)
    release, root = read_release(device) or read_device(name)["l4t"], device.root
    (root / "var/lib/dpkg").mkdir(parents=True, exist_ok=True)
    kernel = KERNEL if (major(release) or 0) >= 36 else ("kernel", "kernel-dtbs")
    named = [stanza("bash"), *(l4t(CORE + kernel, release) if release else [])]
    (root / "var/lib/dpkg/status").write_text("\n".join(named))
    found = packages.check(Host(root))
    assert (found.status, found.reason) == (Status.WORKS, "")
    assert found.facts["l4t_missing"] == (None if release is None or "container" in name else [])


@pytest.mark.parametrize(
    ("gone", "told", "remedy"),
    [
        (("cuda",), "missing: nvidia-l4t-cuda (libcuda)", f"sudo apt-get install nvidia-l4t-cuda=36.4.3-{BUILD}"),
        (
            ("kernel",),
            "missing: nvidia-l4t-kernel (the kernel)",
            f"sudo apt-get install nvidia-l4t-kernel=5.15.148-tegra-36.4.3-{BUILD}",
        ),
        (
            KERNEL,
            "missing: nvidia-l4t-kernel (",
            "sudo apt-get install nvidia-l4t-kernel nvidia-l4t-kernel-oot-modules",
        ),
        (("core",), "missing: nvidia-l4t-core (", f"sudo apt-get install nvidia-l4t-core=36.4.3-{BUILD}"),
    ],
)
def test_a_missing_package_is_named_with_the_version_that_fits(
    tmp_path: Path, gone: tuple[str, ...], told: str, remedy: str
) -> None:
    found = judged(tmp_path, without(*gone), JETSON)
    assert found.status is Status.BROKEN
    assert found.reason.startswith(told)
    assert found.remedy == remedy


def test_a_package_that_was_removed_is_missing_and_its_removal_told(tmp_path: Path) -> None:
    removed = stanza("nvidia-l4t-cuda", f"36.4.3-{BUILD}", "deinstall ok config-files")
    found = judged(tmp_path, [*without("cuda"), removed], JETSON)
    assert found.reason == "missing: nvidia-l4t-cuda (libcuda; it was removed)"
    assert found.facts["removed_with_configuration"] == ["nvidia-l4t-cuda"]


@pytest.mark.parametrize(
    "other",
    [
        [stanza("avt-nvidia-l4t-kernel", "5.10.104-tegra-35.2.1-5.1.0~gad1411701")],
        [stanza("linux-image-board", "1", more="Provides: linux-image, nvidia-l4t-kernel (= 36.4.3)\n")],
        [stanza("nvidia-l4t-kernel-openrm", f"6.8.12-tegra-36.4.3-{BUILD}")],
    ],
)
def test_a_vendor_s_kernel_takes_the_place_of_nvidia_s(tmp_path: Path, other: list[str]) -> None:
    assert judged(tmp_path, [*without("kernel"), *other], JETSON).reason == ""


def test_on_a_release_whose_list_is_not_known_nothing_is_called_missing(tmp_path: Path) -> None:
    found = judged(tmp_path, l4t(("core",), "40.1.0"), JETSON)
    assert (found.status, found.facts["l4t_missing"]) == (Status.WORKS, None)
    names = [f"nvidia-l4t-{name}" for name in ("init", "firmware", "cuda", "3d-core", "kernel")]
    assert judged(tmp_path / "b", l4t(("core",), "39.2.0"), JETSON).facts["l4t_missing"] == names
    more = [*names, "nvidia-l4t-kernel-oot-modules"]
    assert judged(tmp_path / "c", l4t(("core",), "36.5.0"), JETSON).facts["l4t_missing"] == more


def test_a_jetson_without_nvidia_s_packages_is_told_as_one_and_a_container_is_not_asked(tmp_path: Path) -> None:
    found = judged(tmp_path / "a", [], JETSON)
    assert (found.status, found.reason) == (Status.WORKS, "a Jetson without any package nvidia-l4t-*")
    image = {**JETSON, "/.dockerenv": "", "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.4, GCID: 1\n"}
    assert judged(tmp_path / "b", l4t(("core",)), image).reason == ""
    assert judged(tmp_path / "c", []).reason == ""


@pytest.mark.parametrize(
    ("stray", "status", "told"),
    [
        (l4t(("cuda",), "36.4.7"), Status.BROKEN, f"{MIXED}nvidia-l4t-cuda 36.4.7"),
        # AlliedVision's installer brings newer tools: alliedvision/linux_nvidia_jetson#47
        (l4t(("tools",), "36.4.7"), Status.WORKS, f"{MIXED}nvidia-l4t-tools 36.4.7"),
        (
            l4t(("kernel",), "36.5.0", "hold ok installed"),
            Status.WORKS,
            "held at another L4T than nvidia-l4t-core 36.4.3: nvidia-l4t-kernel 36.5.0; on hold: nvidia-l4t-kernel",
        ),
        # as NVIDIA's own lists have them
        (l4t(("jetson-orin-nano-qspi-updater",), "36.3.0"), Status.WORKS, ""),
        (l4t(("jetson-multimedia-api",), "36.4.1"), Status.WORKS, ""),
        ([stanza("nvidia-l4t-cudadebuggingsupport", "12.6-34622040.0")], Status.WORKS, ""),
        ([stanza("nvidia-l4t-camera", "36.4.3-20990101000000")], Status.WORKS, ""),
        ([stanza("nvidia-l4t-camera", f"36.4.7-{BUILD}", "deinstall ok config-files")], Status.WORKS, ""),
    ],
)
def test_packages_of_two_releases(tmp_path: Path, stray: list[str], status: Status, told: str) -> None:
    names = {line[len("Package: nvidia-l4t-") :] for text in stray for line in text.splitlines()[:1]}
    found = judged(tmp_path, [*without(*names), *stray], JETSON)
    assert (found.status, found.reason) == (status, told)
    assert ("dist-upgrade" in found.remedy) == ("more than one" in told)


def test_a_release_file_of_another_release_is_told(tmp_path: Path) -> None:
    file = {"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.7, GCID: 1\n"}
    found = judged(tmp_path, l4t(), {**JETSON, **file})
    assert found.status is Status.BROKEN
    assert found.reason == f"/etc/nv_tegra_release says 36.4.7, but the package nvidia-l4t-core is 36.4.3-{BUILD}"
    assert found.remedy == f"sudo apt-get install --reinstall nvidia-l4t-core=36.4.3-{BUILD}, then reboot"


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("36.4.4-20250616085344", "36.4.4"),
        ("5.15.148-tegra-36.4.4-20250616085344", "36.4.4"),
        ("4.9.299-tegra-32.7.3-20221122092935", "32.7.3"),
        ("39.2.0-20260601141651", "39.2.0"),
        ("12.6-34622040.0", None),
        ("5.10.104-tegra-35.2.1-5.1.0~gad1411701", None),
        ("", None),
    ],
)
def test_the_release_in_a_version(version: str, release: str | None) -> None:
    assert packages.l4t_packages.release_of(version) == release


# ---- states, in words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "told", "remedy"),
    [
        ("install ok triggers-awaited", "triggers-awaited: cuda-toolkit-12-6", "sudo dpkg --configure -a"),
        ("install ok triggers-pending", "triggers-pending: cuda-toolkit-12-6", "sudo dpkg --configure -a"),
        ("install ok half-installed", "half-installed: cuda-t", "sudo apt-get install --reinstall cuda-toolkit-12-6"),
        ("hold reinstreq half-configured", "half-installed: cuda-t", "sudo apt-get install --reinstall cuda-toolkit"),
        ("install hold-reinstreq installed", "half-installed: cuda-t", "sudo apt-get install --reinstall cuda-toolkit"),
        ("deinstall ok half-installed", "half-removed: cuda-t", "sudo dpkg --remove cuda-toolkit-12-6"),
        (
            "purge reinstreq half-installed",
            "half-removed: cuda-t",
            "sudo dpkg --force-remove-reinstreq --remove cuda-t",
        ),
        ("deinstall ok half-configured", "half-configured: cuda-t", "sudo dpkg --configure -a"),
    ],
)
def test_each_unfinished_state_has_its_remedy(tmp_path: Path, status: str, told: str, remedy: str) -> None:
    found = judged(tmp_path, [stanza("cuda-toolkit-12-6", "12.6.11-1", status)])
    assert found.status is Status.BROKEN
    assert found.reason.startswith(told)
    assert found.remedy.startswith(remedy)
    assert "; sudo apt-get -f install" in found.remedy
    assert status.replace("hold-", "") in found.evidence[0].value


@pytest.mark.parametrize("status", ["unknown ok not-installed", "deinstall ok config-files", "purge ok not-installed"])
def test_what_is_gone_is_no_fault(tmp_path: Path, status: str) -> None:
    found = judged(tmp_path, [stanza("cuda-toolkit-12-6", "12.6.11-1", status)])
    assert (found.status, found.reason, found.facts["installed_packages"]) == (Status.WORKS, "", 2)


def test_the_stack_is_named_before_the_others_and_a_long_list_is_cut(tmp_path: Path) -> None:
    status = "install ok half-configured"
    others = [stanza(f"a{number}", "1", status) for number in range(20)]
    found = judged(tmp_path, [*others, stanza("libvulkan1", "1", status), *l4t(("tools",), status=status)])
    assert found.reason.startswith("half-configured: nvidia-l4t-tools, libvulkan1, a0, a1, a2, a3 and 16 more")
    assert found.facts["unfinished_packages"] == 22


@pytest.mark.parametrize("name", ["libglib2.0-0", "libglade2-0", "vim", "mesalib", "python3-docker"])
def test_what_only_sounds_like_the_stack_is_counted_and_not_named(tmp_path: Path, name: str) -> None:
    found = judged(tmp_path, [stanza(name, "1", "hold ok installed")])
    assert (found.reason, found.facts["held"], found.facts["held_others"]) == ("", [], 1)


# ---- no database, or a damaged one -------------------------------------------------------------------------------


def test_without_a_file_each_place_says_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Host(tmp_path)
    assert packages.check(recorded).reason == "the recorded device has no /var/lib/dpkg/status"
    assert packages.check(recorded).status is Status.UNKNOWN
    live = Host(tmp_path)
    live.recorded = False
    monkeypatch.setattr(live, "path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(live, "_file", lambda path: tmp_path / path.lstrip("/"))
    assert packages.check(live).status is Status.ABSENT
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    gone = packages.check(live)
    assert (gone.status, "status-old" in gone.remedy) == (Status.BROKEN, True)
    (tmp_path / "var/lib/dpkg/status.d").mkdir()
    assert packages.check(live).status is Status.ABSENT


def test_what_is_no_file_is_not_read_and_nobody_waits_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dpkg"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "status")
    found = packages.check(Host(tmp_path))
    assert (found.status, found.reason) == (Status.UNKNOWN, "/var/lib/dpkg/status can't be read: not a regular file")


def test_a_file_that_this_user_may_not_read_is_unknown(tmp_path: Path) -> None:
    host = build_files(tmp_path, {STATUS: stanza("bash")})
    (tmp_path / STATUS[1:]).chmod(0)
    mine = os.geteuid()
    modes = {folder: folder.stat().st_mode for folder in (tmp_path, *tmp_path.parents[:2])}  # root's alone
    try:
        if mine == 0:
            for folder in modes:
                folder.chmod(0o755)
            os.seteuid(65534)
        found = packages.check(host)
    finally:
        os.seteuid(mine)
        for folder, mode in modes.items():
            folder.chmod(mode)
    assert (found.status, found.reason) == (Status.UNKNOWN, f"{STATUS} can't be read: Permission denied")
    assert found.remedy == f"sudo chmod 644 {STATUS}"


@pytest.mark.parametrize(
    "text",
    [
        "\0" * 8192,  # as a file system leaves it after a power cut
        stanza("bash") + "\n" + "\0" * 4096,
        stanza("bash") + "\nPackage: nvidia-l4t-co",  # cut off
        stanza("bash") + "\nPackage: nvidia-l4t-core\nStatus: install ok instal\n",
        "<html>no status file</html>\n",
        stanza("bash") + "\nStatus: install ok installed\nVersion: 1\n",  # nameless
    ],
)
def test_a_damaged_file_is_unknown_with_its_own_words(tmp_path: Path, text: str) -> None:
    found = packages.check(build_files(tmp_path, {STATUS: text, **JETSON}))
    assert found.status is Status.UNKNOWN
    assert found.reason.startswith("/var/lib/dpkg/status is damaged: 1 of its parts")
    assert "sudo cp /var/lib/dpkg/status-old" in found.remedy
    assert "\0" not in found.evidence[0].value
    assert found.facts["l4t_missing"] is None


def test_a_fault_in_a_damaged_file_is_told_all_the_same(tmp_path: Path) -> None:
    found = judged(tmp_path, [stanza("nvidia-l4t-core", "1", "install ok unpacked"), "junk\n"], JETSON)
    assert found.status is Status.BROKEN
    assert "is damaged" in found.reason
    assert "unpacked: nvidia-l4t-core" in found.reason


def test_what_stands_in_the_lost_part_of_a_damaged_file_is_not_called_missing(tmp_path: Path) -> None:
    found = judged(tmp_path, [*l4t(("core",)), "junk\n"], JETSON)
    assert (found.status, found.facts["l4t_missing"]) == (Status.UNKNOWN, None)
    assert "missing:" not in found.reason


@pytest.mark.parametrize("word", ["cuda-\0x", "cuda-$(reboot)", "cuda-`id`", "cuda;id", "cuda x", "-cuda", "x" * 200])
def test_what_can_be_no_name_or_version_gets_into_no_remedy(tmp_path: Path, word: str) -> None:
    named = judged(tmp_path / "a", [stanza(word, status="install ok unpacked")])
    assert (named.status, named.facts["unfinished"]) == (Status.UNKNOWN, [])
    versioned = judged(tmp_path / "b", [stanza("nvidia-l4t-core", word, "install ok half-installed")])
    assert versioned.status is Status.BROKEN
    assert versioned.remedy.startswith("sudo apt-get install --reinstall nvidia-l4t-core;")


def test_a_file_that_is_too_long_is_read_to_its_limit(tmp_path: Path) -> None:
    text = "\n".join(stanza(f"p{number}", more=f"Depends: {'x' * 3000}\n") for number in range(5400))
    found = packages.check(build_files(tmp_path, {STATUS: text}))
    assert found.reason == "/var/lib/dpkg/status is longer than 16 MiB: the rest was not read"
    assert found.status is Status.UNKNOWN


# ---- parsing -----------------------------------------------------------------------------------------------------


def test_parts_may_end_anywhere() -> None:
    data = "\n".join([stanza("aa"), stanza("libvulkan1", status="hold ok installed"), stanza("cc")]).encode()
    whole = dpkg.parse_status([data])
    assert whole.installed == 3
    for at in range(len(data)):
        assert dpkg.parse_status([data[:at], data[at:]]) == whole


def test_fields_come_in_any_order_and_case_and_empty_lines_in_any_number() -> None:
    held = "\n\n\nversion:2\nSTATUS:  hold  ok   installed \nPackage:\tlibegl1\n\n\n\n\n"
    text = f"{held}Package: xx\nStatus: install ok installed"
    found = dpkg.parse_status([text.encode()])
    assert [(p.name, p.version, p.want) for p in found.packages] == [("libegl1", "2", "hold")]
    assert (found.installed, found.damaged) == (2, 0)


def test_two_architectures_of_a_package_are_two() -> None:
    status = "hold ok installed"
    arm, amd = stanza("libvulkan1", status=status), stanza("libvulkan1", status=status).replace("arm64", "amd64")
    assert len(dpkg.parse_status([f"{arm}\n{amd}".encode()]).packages) == 2


def test_a_full_jetson_is_read_in_milliseconds_and_little_memory(tmp_path: Path) -> None:
    text = "\n".join([*l4t(), *(stanza(f"p{n}", more=f"Depends: {'x, ' * 420}\n") for n in range(3400))])
    assert 4_900_000 < len(text) < 5_600_000
    host = build_files(tmp_path, {STATUS: text})
    took_s = []
    for _ in range(7):
        start_s = time.process_time()
        assert dpkg.read_database(host).installed == 3409
        took_s.append(time.process_time() - start_s)
    assert min(took_s) < 0.06
    tracemalloc.start()
    try:
        dpkg.read_database(host)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_locks_are_read_as_the_kernel_writes_them() -> None:
    text = (
        "1: POSIX  ADVISORY  WRITE 812 fe:00:402116 0 EOF\n"
        "2: POSIX  ADVISORY  READ 813 fe:00:402117 0 EOF\n"
        "2: -> POSIX  ADVISORY  WRITE 814 fe:00:402118 0 EOF\n"  # it waits
        "3: FLOCK  ADVISORY  WRITE -1 08:1f:9 0 EOF\nnonsense\n"
    )
    assert dpkg.parse_locks(text) == {(0xFE, 0, 402116): 812, (8, 0x1F, 9): -1}
