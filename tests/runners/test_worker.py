"""Workers for real: a process per model, killed, cancelled, starved and abandoned."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.contract import DeviceKind
from runners.contract import (
    Cancelled,
    ChatMessage,
    DeadlineExceeded,
    FinishReason,
    GenerateRequest,
    ModelRejected,
    OpenOptions,
    RequestRejected,
    RunnerError,
    WorkerDied,
)
from runners.framing import Closed, Connection
from runners.llama_cpp import TINY
from runners.messages import Classify, Done, Failed, Generate
from runners.tiny.make_gguf import ANSWER, TEMPLATE
from runners.worker import Worker, death, exited

PROJECT = Path(__file__).parent.parent.parent
OPTIONS = OpenOptions(context_tokens=32768, threads=1)
COUNT = Generate(request=GenerateRequest(prompt="Count:"))
ENDLESS = Generate(request=GenerateRequest(prompt="~", max_tokens=30000))
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: no worker had a model to run")


def start(path: Path | str = TINY, options: OpenOptions = OPTIONS, **how: object) -> Worker:
    return Worker.start("llama_cpp", str(path), options, **how)  # type: ignore[arg-type]


@pytest.fixture
def worker() -> Iterator[Worker]:
    with start() as running:
        yield running


def gone(pid: int, within_s: float = 5.0) -> bool:
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # ended, and not yet reaped by whoever inherited it
            return True
        time.sleep(0.02)
    return False


def descriptors(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


# What it is for


def test_an_answer_comes_in_pieces_with_times_placement_and_memory(worker: Worker) -> None:
    pieces: list[str] = []
    done = worker.request(COUNT, on_piece=pieces.append)
    assert "".join(pieces) == done.text == ANSWER
    assert len(pieces) > 10
    assert done.finish_reason is FinishReason.STOP
    assert done.placement.all_on(DeviceKind.CPU)
    timing = done.timing
    assert timing.output_tokens == 14
    assert timing.ttft_s is not None
    assert 0 < timing.ttft_s < (timing.end_to_end_s or 0)
    assert timing.load_s == worker.opened.load_s > 0
    assert (timing.peak_memory_bytes or 0) > 20 << 20


def test_a_real_model_answers_a_chat_in_its_own_process(smollm2: Path) -> None:
    with start(smollm2, OpenOptions(context_tokens=512, threads=1)) as worker:
        messages = (ChatMessage(role="user", content="What is 2 + 2? Answer with one number."),)
        done = worker.request(Generate(request=GenerateRequest(messages=messages, max_tokens=40)))
        assert "4" in done.text
        assert worker.request(
            Generate(request=GenerateRequest(prompt="The capital of France is", max_tokens=1))
        ).text == (" Paris")


def test_a_relative_path_starts_where_the_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(TINY, tmp_path / "here.gguf")
    monkeypatch.chdir(tmp_path)
    with start("here.gguf") as worker:
        assert worker.request(COUNT).text == ANSWER


def test_the_oom_killer_is_told_to_take_the_worker_first(worker: Worker) -> None:
    assert Path(f"/proc/{worker.pid}/oom_score_adj").read_text().strip() == "500"


def test_openmp_sleeps_soon_unless_the_user_said_otherwise() -> None:
    with start() as worker:
        assert b"OMP_WAIT_POLICY=passive" in Path(f"/proc/{worker.pid}/environ").read_bytes()
    with start(environ={**os.environ, "OMP_WAIT_POLICY": "active"}) as worker:
        assert b"OMP_WAIT_POLICY=active" in Path(f"/proc/{worker.pid}/environ").read_bytes()


def test_a_process_that_prints_without_end_is_drained_and_its_last_lines_kept() -> None:
    with start(environ={**os.environ, "PYTHONVERBOSE": "2"}) as worker:  # some hundred kilobytes of chatter
        assert worker.request(COUNT).text == ANSWER
        assert 1000 < len(worker.log_tail) <= 16 << 10


# Refusals leave the model loaded


def test_a_refused_request_does_not_end_the_worker(worker: Worker) -> None:
    with pytest.raises(RequestRejected, match="40001 tokens and the context holds 32768") as caught:
        worker.request(Generate(request=GenerateRequest(prompt="x" * 40000)))
    assert "more than 40001 tokens" in caught.value.remedy
    assert worker.request(COUNT).text == ANSWER


def test_a_request_too_large_for_a_frame_is_refused_before_it_is_sent(worker: Worker) -> None:
    with pytest.raises(RequestRejected, match="does not fit into the 16777216 bytes"):
        worker.request(Generate(request=GenerateRequest(prompt="x" * (17 << 20))))
    assert worker.request(COUNT).text == ANSWER


def test_images_are_refused_by_a_language_model(worker: Worker) -> None:
    with pytest.raises(RequestRejected, match=r"tiny\.gguf is a language model"):
        worker.request(Classify(images=("x.png",)))


def test_a_file_that_is_not_there_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"nothing\.gguf"):
        start(tmp_path / "nothing.gguf")
    assert not children()


def test_a_page_saved_as_a_model_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<!DOCTYPE html><html>404</html>" * 20)
    with pytest.raises(ModelRejected):
        start(path)


def children() -> list[int]:
    me = os.getpid()
    found = Path(f"/proc/{me}/task/{me}/children")
    return [
        int(pid) for pid in found.read_text().split() if b"runners.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


# Death


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGILL])
def test_a_worker_killed_in_the_middle_of_an_answer_is_reported_with_the_signal(
    worker: Worker, number: signal.Signals
) -> None:
    pieces: list[str] = []

    def kill_after_three(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            os.kill(worker.pid, number)

    with pytest.raises(WorkerDied, match=f"killed by {number.name}"):
        worker.request(ENDLESS, on_piece=kill_after_three)
    assert len(pieces) >= 3
    assert not worker.alive
    assert gone(worker.pid)
    with pytest.raises(RunnerError):
        worker.request(COUNT)


def test_the_last_words_of_a_dead_worker_are_kept(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match=r"it last said: .*sched_reserve"):
        worker.request(ENDLESS, on_piece=lambda piece: os.kill(worker.pid, signal.SIGKILL))


def test_a_death_by_the_oom_killer_is_told_from_somebodys_kill() -> None:
    reason, remedy = death("generate", -9, "", oom_killer_ran=True)
    assert reason == "generate: the model's process was killed by SIGKILL: the kernel's OOM killer ran"
    assert "smaller model" in remedy
    assert death("generate", -9, "", oom_killer_ran=False)[1] == ""
    assert "GGML_NATIVE=OFF" in death("loading", -4, "", oom_killer_ran=False)[1]


def test_a_death_by_a_signal_without_a_name_is_told_all_the_same() -> None:
    assert "was killed by signal 40" in death("generate", -40, "", oom_killer_ran=False)[0]


def test_a_process_that_not_even_sigkill_ends_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    running = start()
    wait = running._process.wait

    def stuck(timeout: float | None = None) -> int:
        assert timeout is not None, "waits for ever"
        raise subprocess.TimeoutExpired("worker", timeout)

    monkeypatch.setattr(running._process, "wait", stuck)  # no test can put a process into such a state
    running.kill()
    assert not running.alive
    wait()
    reason, remedy = death("generate", None, "", oom_killer_ran=False)
    assert "stuck inside the kernel" in reason
    assert "reboot" in remedy


def test_a_worker_that_hangs_is_killed_at_its_deadline(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"did not end within 0\.5 s"):
        worker.request(COUNT, deadline_s=0.5)
    assert time.monotonic() - start_s < 3
    assert gone(worker.pid)


def test_loading_that_takes_too_long_is_given_up_and_leaves_no_process() -> None:
    with pytest.raises(DeadlineExceeded, match=r"loading tiny\.gguf with llama_cpp did not end"):
        start(deadline_s=0.01)
    assert not children()


def test_loading_can_be_cancelled_and_leaves_no_process() -> None:
    with pytest.raises(Cancelled, match=r"loading tiny\.gguf with llama_cpp was cancelled"):
        start(cancelled=lambda: True)
    assert not children()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_request_leaves_no_process(worker: Worker, error: type[BaseException]) -> None:
    def interrupt(_: str) -> None:
        raise error

    with pytest.raises(error):
        worker.request(ENDLESS, on_piece=interrupt)
    assert gone(worker.pid)


# Cancelling


def cancel_at(worker: Worker, message: Generate, piece_number: int = 3) -> tuple[Done, int, float]:
    """Cancel at a piece, from the thread that gets it; gives the answer, tokens seen then, seconds from the cancel."""
    seen: list[float] = []

    def on_piece(_: str) -> None:
        seen.append(time.monotonic())
        if len(seen) == piece_number:
            assert worker.cancel()

    done = worker.request(message, on_piece=on_piece)
    return done, piece_number, time.monotonic() - seen[piece_number - 1]


def test_a_cancel_stops_a_real_model_within_two_tokens(smollm2: Path) -> None:
    with start(smollm2, OpenOptions(context_tokens=1024, threads=1)) as worker:
        message = Generate(request=GenerateRequest(prompt="Once upon a time", max_tokens=500))
        done, seen, took_s = cancel_at(worker, message)
        assert done.finish_reason is FinishReason.CANCELLED
        assert (done.timing.output_tokens or 0) - seen <= 2
        assert took_s < 0.5
        start_s = time.monotonic()
        assert worker.request(Generate(request=GenerateRequest(prompt="Hi", max_tokens=1))).timing.output_tokens == 1
        assert time.monotonic() - start_s < 1


def test_a_cancel_in_the_middle_of_a_long_prompt_is_obeyed_at_once(smollm2: Path) -> None:
    with start(smollm2, OpenOptions(context_tokens=8192, threads=1)) as worker:
        timer = threading.Timer(0.3, worker.cancel)
        timer.start()
        start_s = time.monotonic()
        done = worker.request(Generate(request=GenerateRequest(prompt="word " * 8000)))
        assert done.finish_reason is FinishReason.CANCELLED
        assert done.timing.output_tokens == 0
        assert time.monotonic() - start_s < 0.3 + 0.5
        timer.join()


def test_twenty_cancels_leave_nothing_behind(worker: Worker) -> None:
    cancel_at(worker, ENDLESS)
    before = descriptors(worker.pid), threads(worker.pid), descriptors("self"), threads("self")
    for _ in range(20):
        done, _, took_s = cancel_at(worker, ENDLESS)
        assert done.finish_reason is FinishReason.CANCELLED
        assert took_s < 0.5
    assert (descriptors(worker.pid), threads(worker.pid), descriptors("self"), threads("self")) == before
    assert worker.request(COUNT).text == ANSWER


def test_a_cancel_without_a_request_says_so_and_does_not_hit_the_next_one(worker: Worker) -> None:
    assert not worker.cancel()
    assert worker.request(COUNT).finish_reason is FinishReason.STOP
    assert not worker.cancel()
    assert worker.request(COUNT).finish_reason is FinishReason.STOP


# Ending


def test_closing_leaves_no_process_thread_or_descriptor() -> None:
    before = descriptors("self"), threads("self")
    worker = start()
    worker.close()
    assert gone(worker.pid, 0.1)
    assert (descriptors("self"), threads("self")) == before
    worker.close()
    assert not worker.cancel()
    assert not worker.alive


def test_closing_while_an_answer_is_made_ends_it_as_cancelled() -> None:
    worker = start()
    threading.Timer(0.2, worker.close).start()
    with pytest.raises(Cancelled, match="the model was closed"):
        worker.request(ENDLESS)
    assert gone(worker.pid)


def test_a_process_that_the_worker_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(
        f"import subprocess\nopen({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    worker = start(environ={**os.environ, "PYTHONPATH": path})
    pid = int(note.read_text())
    assert Path(f"/proc/{pid}").exists()
    worker.close()
    assert gone(pid)


ENDLESS_TEMPLATE = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "request_fields",
    ["", "prompt='~', max_tokens=30000", "messages=(ChatMessage(role='user', content='hi'),)"],
    ids=["idle", "in the middle of an answer", "in a template that never ends and never asks"],
)
def test_a_worker_ends_when_its_parent_is_killed(request_fields: str, tmp_path: Path) -> None:
    template = TEMPLATE.encode()
    model = tmp_path / "model.gguf"
    model.write_bytes(TINY.read_bytes().replace(template, ENDLESS_TEMPLATE.encode().ljust(len(template))))
    code = f"""
import sys
from runners.contract import ChatMessage, GenerateRequest, OpenOptions
from runners.messages import Generate
from runners.worker import Worker
worker = Worker.start("llama_cpp", {str(model)!r}, OpenOptions(context_tokens=32768, threads=1))
print(worker.pid, flush=True)
if {request_fields!r}:
    worker.request(Generate(request=GenerateRequest({request_fields})))
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            time.sleep(0.3)
            assert Path(f"/proc/{pid}").exists()
            parent.kill()
            assert gone(pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def test_a_process_that_is_no_child_counts_as_ended() -> None:
    assert exited(1)


# Framing


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\x00\x00\x03abc", "what came is not a message"),
        (b"\xff\xff\xff\xff", "4294967295 bytes was announced"),
        (b"\x00\x00\x00\x03ab", "the other side ended the conversation"),
    ],
)
def test_what_is_not_a_message_ends_the_conversation_without_using_memory(data: bytes, said: str) -> None:
    ours, theirs = socket.socketpair()
    connection: Connection[Done] = Connection(ours, Done)
    with theirs:
        theirs.sendall(data)
    with pytest.raises(Closed, match=said):
        connection.receive()
    connection.close()


def test_half_a_message_waits_for_the_other_half() -> None:
    ours, theirs = socket.socketpair()
    sender: Connection[Failed] = Connection(theirs, Failed)
    receiver: Connection[Failed] = Connection(ours, Failed)
    message = Failed(code="x", reason="é")
    whole = sender._encoder.encode(message)
    theirs.sendall(len(whole).to_bytes(4, "big") + whole[:3])
    with pytest.raises(TimeoutError):
        receiver.receive(time.monotonic() + 0.05)
    theirs.sendall(whole[3:])
    assert receiver.receive(time.monotonic() + 1) == message
    sender.close()
    receiver.close()
