from __future__ import annotations

import _thread
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import probes.survey as module
from probes.contract import Finding, Status
from probes.ending import Ending, died_by, judge
from probes.isolation import MEMORY_BYTES, Check, execute, list_probes, probe_check
from probes.listing import PROBE_PATH, probe_files
from probes.survey import survey
from runners.checks import runner_checks

FOLDER = Path(__file__).parent / "fixtures_isolation"
PROJECT = Path(__file__).parents[2]
ENVIRON = {**os.environ, PROBE_PATH: str(FOLDER)}
FILES = probe_files(ENVIRON)


def fixture_check(name: str, **changes: object) -> Check:
    check = probe_check(name, file=FILES[name])
    return Check(**{**{field: getattr(check, field) for field in Check.__struct_fields__}, **changes})


def found(name: str, **changes: object) -> Finding:
    return execute(fixture_check(name, **changes), ENVIRON)


def program(code: str, **changes: object) -> Finding:
    """A check that is not ours: its descriptor is sys.argv[2]."""
    return execute(Check(subject="x/y", layer=4, argv=(sys.executable, "-c", code), **changes))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends_soon(pid: int) -> bool:
    until = time.monotonic() + 3
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(pid)


# ---- how a check can end -------------------------------------------------------------------------------------------


def test_a_crash_is_told_by_signal_and_place() -> None:
    finding = found("crashes")
    assert finding.status is Status.BROKEN
    assert finding.reason.startswith("died by SIGSEGV in string_at (ctypes/__init__.py:")
    assert "crashes.py" in finding.evidence[0].value


def test_a_crash_of_a_program_that_is_not_ours_is_told_as_well() -> None:
    assert program("import ctypes; ctypes.string_at(0)").reason.startswith("died by SIGSEGV in string_at (")


def test_an_abort_is_told_with_the_library_s_last_words() -> None:
    reason = found("aborts").reason
    assert reason.startswith("died by SIGABRT in check (fixtures_isolation/aborts.py:")
    assert reason.endswith(": terminate called: no GPU memory")


def test_a_hang_is_killed_at_its_deadline_though_it_ignores_sigterm() -> None:
    finding = found("hangs")
    assert finding.reason == "no answer in 1.5 s; killed"
    assert 1.5 <= finding.duration_s < 3


def test_a_process_left_behind_is_killed_and_does_not_delay_the_answer() -> None:
    started = time.monotonic()
    finding = found("leaves_a_process")
    assert finding.status is Status.WORKS
    assert time.monotonic() - started < 5
    assert ends_soon(finding.facts["left_pid"])  # type: ignore[arg-type]


def test_a_gigabyte_of_chatter_costs_no_memory_and_blocks_nobody() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    finding = found("floods")
    assert finding.status is Status.WORKS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


def test_a_flood_without_end_is_killed_at_its_deadline_and_its_tail_is_kept() -> None:
    finding = found("floods_for_ever")
    assert finding.reason == "no answer in 1.5 s; killed"
    assert 0 < len(finding.evidence[0].value) <= 2048
    assert "flood\nflood\n" in finding.evidence[0].value


def test_what_libraries_print_on_stdout_does_not_touch_the_answer() -> None:
    finding = found("chatters")
    assert (finding.status, finding.version) == (Status.WORKS, "1")


def test_eating_memory_is_stopped_at_the_limit() -> None:
    finding = found("eats_memory", memory_bytes=200 << 20)
    assert finding.status is Status.BROKEN
    assert finding.reason.endswith("MiB of memory, 200 MiB are allowed; killed")
    assert finding.duration_s < 2


def test_memory_that_a_started_command_eats_counts_as_well() -> None:
    finding = found("child_eats_memory", memory_bytes=300 << 20, deadline_s=20)
    assert finding.reason.endswith("MiB of memory, 300 MiB are allowed; killed")


def test_address_space_that_is_only_reserved_is_not_memory() -> None:
    assert found("reserves_memory", memory_bytes=200 << 20).status is Status.WORKS


def test_an_exit_without_answer_tells_status_and_last_words() -> None:
    assert found("exits").reason == "ended with exit status 3 and no answer: cannot open display"


def test_exit_status_0_without_answer_is_broken() -> None:
    assert program("pass").reason == "ended with exit status 0 and no answer"


def test_a_bug_in_a_check_is_its_type_and_message_with_the_traceback_as_evidence() -> None:
    finding = found("raises")
    assert (finding.status, finding.reason) == (Status.BROKEN, "the check raised KeyError: 'missing key'")
    assert 'return {}["missing key"]' in finding.evidence[0].value


def test_no_finding_returned_is_broken() -> None:
    assert found("answers_none").reason == "its answer is no finding: Expected `object`, got `null`"


def test_a_fact_that_is_no_json_is_broken() -> None:
    finding = found("answers_an_odd_fact")
    assert finding.status is Status.BROKEN
    assert finding.reason.startswith("the check raised TypeError: ")


@pytest.mark.parametrize("text", ["{", "not json", '{"subject":"x/y","layer":4,"status":"fine"}', "[]"])
def test_an_answer_that_is_no_finding_is_broken(text: str) -> None:
    finding = program(f"import os, sys; os.write(int(sys.argv[2]), {text.encode()!r})")
    assert finding.status is Status.BROKEN
    assert finding.reason.startswith("its answer is no finding: ")


def test_an_answer_without_end_is_cut_off() -> None:
    finding = program("import os, sys\nfor _ in range(64): os.write(int(sys.argv[2]), b' ' * (1 << 20))")
    assert finding.reason == "its answer is longer than 1 MiB"


def test_an_answer_for_another_check_is_refused() -> None:
    finding = found("answers_for_another")
    assert finding.subject == "answers_for_another"
    assert finding.reason == "it answered for 'vulkan' in layer 2, not for 'answers_for_another' in layer 2"


def test_an_answer_before_a_hang_is_told_as_such() -> None:
    code = "import os, sys, time; os.write(int(sys.argv[2]), b'{'); time.sleep(600)"
    assert program(code, deadline_s=0.5).reason == "did not end after its answer in 0.5 s; killed"


def test_a_command_that_is_not_there_is_broken() -> None:
    finding = execute(Check(subject="x/y", layer=4, argv=("/nonexistent/python",)))
    assert finding.reason == "/nonexistent/python could not be started: No such file or directory"


def test_a_module_that_can_t_be_imported_is_broken_and_does_not_vanish() -> None:
    finding = found("imports_what_is_not_there")
    assert finding.status is Status.BROKEN
    assert finding.reason.endswith("can't be imported: ModuleNotFoundError: No module named 'no_such_module'")


def test_a_file_without_layer_is_broken_and_does_not_vanish() -> None:
    finding = found("has_no_layer")
    assert finding.reason == f"{FOLDER / 'has_no_layer.py'} is no probe: it has no LAYER"


def test_the_duration_is_set_here_and_not_by_the_check() -> None:
    assert 0.2 < found("waits").duration_s < 5


def test_no_descriptor_is_left_open() -> None:
    found("raises")
    before = os.listdir("/proc/self/fd")
    found("raises")
    found("crashes")
    assert os.listdir("/proc/self/fd") == before


def test_a_signal_without_crash_dump_is_named_all_the_same() -> None:
    assert died_by(signal.SIGKILL, "").startswith("died by SIGKILL: the kernel's out-of-memory killer")


def test_a_crash_dump_with_c_frames_names_the_library() -> None:
    dump = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 [python] (most recent call first):\n"
        '  File "/p/tensorrt/__init__.py", line 7 in build\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/lib/libpython3.14.so.1.0", at _Py_DumpStack+0x10\n'
        '  Binary file "/lib/x86_64-linux-gnu/libc.so.6", at +0x3fdf0\n'
        '  Binary file "/usr/lib/libnvinfer.so.10", at createInferBuilder+0x2a\n'
    )
    assert died_by(signal.SIGSEGV, dump) == "died by SIGSEGV in libnvinfer.so.10"


def test_a_process_that_not_even_sigkill_ends_is_told() -> None:
    finding = judge("cuda", 2, Ending(returncode=None, killed="no answer in 30 s; killed"))
    assert finding.reason == "no answer in 30 s; killed, but it lives on: stuck inside the kernel, in a driver"


# ---- nothing is left when we go ------------------------------------------------------------------------------------


def started_pids(pids: Path) -> list[int]:
    """Waits for the check that forks and hangs; gives its numbers."""
    until = time.monotonic() + 20
    while not pids.exists() and time.monotonic() < until:
        time.sleep(0.02)
    numbers = [int(word) for word in pids.read_text().split()]
    assert all(map(is_running, numbers))
    return numbers


@pytest.fixture
def surveying(tmp_path: Path) -> Callable[[int], list[int]]:
    """Starts a survey of a forking, hanging check in a process, sends it a signal; gives the numbers of the check's."""

    def start(number: int) -> list[int]:
        pids = tmp_path / "pids"
        environ = {**ENVIRON, "FORKED_PID_FILE": str(pids)}
        code = (
            "from probes.isolation import probe_check\nfrom probes.survey import survey\n"
            "survey([probe_check('forks_and_hangs')])"
        )
        ours = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, env=environ, stderr=subprocess.PIPE)
        numbers = started_pids(pids)
        ours.send_signal(number)
        ours.communicate(timeout=10)
        return numbers

    return start


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_survey_is_ended(surveying: Callable[[int], list[int]], number: int) -> None:
    assert all(map(ends_soon, surveying(number)))


# ---- survey --------------------------------------------------------------------------------------------------------


def test_a_survey_answers_in_layer_order_and_tells_each_finding_as_it_comes() -> None:
    told: list[str] = []
    names = ["waits", "raises", "chatters"]
    findings = survey(map(fixture_check, names), 2, lambda finding: told.append(finding.subject), ENVIRON)
    assert [finding.subject for finding in findings] == ["chatters", "raises", "waits"]
    assert sorted(told) == sorted(names)


def test_the_longest_check_is_started_first() -> None:
    told: list[str] = []
    checks = [fixture_check("raises", cost_s=1), fixture_check("chatters", cost_s=9), fixture_check("exits", cost_s=3)]
    survey(checks, 1, lambda finding: told.append(finding.subject), ENVIRON)
    assert told == ["chatters", "exits", "raises"]


def test_checks_run_beside_each_other_and_no_more_of_them_than_allowed() -> None:
    environ = {**ENVIRON, "WAITS_S": "1"}
    started = time.monotonic()
    survey([fixture_check("waits")] * 4, 4, environ=environ)
    assert time.monotonic() - started < 3
    started = time.monotonic()
    survey([fixture_check("waits")] * 2, 1, environ=environ)
    assert time.monotonic() - started > 2


def test_on_a_machine_with_a_gpu_one_check_uses_it_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**ENVIRON, "WAITS_S": "1"}
    checks = [fixture_check("waits", uses_gpu=True), fixture_check("waits", uses_gpu=True), fixture_check("waits")]
    for gpu, at_least_s, below_s in ((True, 2.0, 2.9), (False, 1.0, 1.9)):
        monkeypatch.setattr(module, "has_gpu", lambda gpu=gpu: gpu)
        started = time.monotonic()
        assert len(survey(checks, 3, environ=environ)) == 3
        assert at_least_s < time.monotonic() - started < below_s


def test_a_survey_of_nothing_is_empty() -> None:
    assert survey([]) == ()


def test_crashes_and_hangs_cost_a_survey_no_other_finding() -> None:
    names = ["crashes", "hangs", "exits", "chatters"]
    by_subject = {finding.subject: finding for finding in survey(map(fixture_check, names), environ=ENVIRON)}
    assert by_subject["chatters"].status is Status.WORKS
    assert {name for name in names if by_subject[name].status is Status.BROKEN} == {"crashes", "hangs", "exits"}


def test_an_error_in_the_callback_ends_the_survey_and_its_checks() -> None:
    def fail(finding: Finding) -> None:
        raise OSError("broken pipe")

    started = time.monotonic()
    with pytest.raises(OSError, match="broken pipe"):
        survey([fixture_check("hangs", deadline_s=60), fixture_check("raises")], 2, fail, ENVIRON)
    assert time.monotonic() - started < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("survey-")]


def test_an_interrupt_from_another_thread_ends_the_survey_and_its_checks() -> None:
    started = time.monotonic()
    threading.Timer(0.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        survey([fixture_check("hangs", deadline_s=60)], environ=ENVIRON)
    assert time.monotonic() - started < 10


# ---- listing and command line --------------------------------------------------------------------------------------


def probes(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "probes", *arguments]
    return subprocess.run(
        command, cwd=PROJECT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_list_has_the_folder_s_probes_and_no_other_module() -> None:
    names = list_probes({})
    assert {"hardware", "jetpack", "memory"} <= set(names)
    assert not {"contract", "host", "isolation", "survey", "child", "listing"} & set(names)


def test_a_folder_that_is_not_there_is_listed_with_its_trouble() -> None:
    file = probe_files({PROBE_PATH: "/nonexistent/mine"})["mine"]
    assert file.problem == f"{PROBE_PATH} names /nonexistent/mine, which can't be listed: No such file or directory"


def test_a_probe_s_text_gives_its_layer_cost_deadline_and_first_line() -> None:
    file = FILES["hangs"]
    assert (file.layer, file.deadline_s, file.summary) == (2, 1.5, "Never answers, and does not mind SIGTERM.")
    assert FILES["waits"].cost_s == 5


def test_a_probe_whose_libraries_are_large_may_use_more_memory() -> None:
    assert probe_check("tensorrt").memory_bytes == 6 << 30
    assert probe_check("cuda").memory_bytes == MEMORY_BYTES
    assert all(check.memory_bytes == 6 << 30 for check in runner_checks())


def test_the_command_line_lists_layer_probe_and_first_line() -> None:
    lines = probes("--list", **{PROBE_PATH: str(FOLDER)}).stdout.splitlines()
    assert any(line.split(maxsplit=2) == ["3", "waits", FILES["waits"].summary] for line in lines)


def test_a_wrong_name_ends_with_2_and_the_nearest_right_one() -> None:
    done = probes("hardwear")
    assert done.returncode == 2
    assert done.stderr.endswith("no probe is called 'hardwear'; did you mean 'hardware'?\n")


def test_a_root_that_is_no_folder_ends_with_2() -> None:
    done = probes("--root", "/nonexistent")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "python -m probes: error: --root /nonexistent: no such folder",
    )


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    environ = {**ENVIRON, "FORKED_PID_FILE": str(tmp_path / "pids")}
    command = [sys.executable, "-m", "probes", "forks_and_hangs"]
    ours = subprocess.Popen(command, cwd=PROJECT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started_pids(tmp_path / "pids")
    ours.send_signal(signal.SIGINT)
    assert ours.communicate(timeout=10) == (b"", b"")
    assert ours.returncode == 130


def test_one_name_prints_one_finding_as_json() -> None:
    done = probes("raises", **{PROBE_PATH: str(FOLDER)})
    assert done.returncode == 0
    assert '"reason": "the check raised KeyError: \'missing key\'"' in done.stdout


def test_the_help_says_how_to_add_probes() -> None:
    assert PROBE_PATH in probes("--help").stdout
