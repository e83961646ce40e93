"""Runs many checks at once, a bounded number at a time, the longest first; the answer is in layer order."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping

from probes import gpu_nodes
from probes.contract import Finding
from probes.host import Host
from probes.isolation import Check, execute

WAKE_S = 0.5  # `_thread.interrupt_main` does not end a wait; only between two waits is it seen


def survey(
    checks: Iterable[Check],
    jobs: int | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """Execute checks. No process is left, whatever is raised here, Ctrl-C included.

    Args:
        checks: what to run.
        jobs: how many at once, >= 1; None for one more than our processors: checks wait for disk and driver.
        on_finding: called in this thread with each finding as it comes.
        environ: the checks' whole environment; None for this process's own.

    Returns: one finding per check, by layer, then by subject.
    """
    todo: queue.SimpleQueue[Check] = queue.SimpleQueue()
    for_gpu: queue.SimpleQueue[Check] = queue.SimpleQueue()  # one thread empties it: one GPU check at a time
    longest_first = sorted(checks, key=lambda check: -check.cost_s)
    one_by_one = has_gpu()
    for check in longest_first:
        (for_gpu if check.uses_gpu and one_by_one else todo).put(check)
    done: queue.SimpleQueue[Finding | BaseException] = queue.SimpleQueue()
    stop_fd, our_stop_fd = os.pipe()

    def work(*queues: queue.SimpleQueue[Check]) -> None:
        try:
            for mine in queues:
                with contextlib.suppress(queue.Empty):
                    while True:
                        done.put(execute(mine.get_nowait(), environ, stop_fd))
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread and raised there
            done.put(error)

    jobs = len(os.sched_getaffinity(0)) + 1 if jobs is None else jobs
    threads = [
        threading.Thread(target=work, args=(todo,) if n else (for_gpu, todo), name=f"survey-{n}")
        for n in range(min(max(jobs, 1), len(longest_first)))
    ]
    findings: list[Finding] = []
    try:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # no more threads are allowed (RLIMIT_NPROC, a cgroup): those that there are do it
                break
        if threads and threads[0].ident is None:
            work(for_gpu, todo)
        for _ in longest_first:
            finding = wait_for(done)
            if isinstance(finding, BaseException):
                raise finding
            findings.append(finding)
            if on_finding is not None:
                on_finding(finding)
    finally:
        for waiting in (for_gpu, todo):  # given up: nothing more is to be started
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
        os.close(our_stop_fd)  # wakes everybody who waits for a check
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        os.close(stop_fd)
    return tuple(sorted(findings, key=lambda finding: (finding.layer, finding.subject)))


def has_gpu() -> bool:
    """Whether this machine has the node of a GPU; software devices don't disturb each other."""
    return gpu_nodes.there(Host())


def wait_for(done: queue.SimpleQueue[Finding | BaseException]) -> Finding | BaseException:
    """The next one, however long it takes; in steps, so that an interrupt is seen that is no signal."""
    while True:
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=WAKE_S)
