from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.outbox import Outbox
from agent.records import CommandRow, Message
from agent.store import Store, StoreUnavailable

PROJECT = Path(__file__).parent.parent.parent


def row(command_id: str, state: str = "accepted") -> CommandRow:
    return CommandRow(
        id=command_id,
        verb="nap",
        arguments=b"{}",
        state=state,
        sequence=0,
        state_json=b'{"id":"%s","state":"%s","result":{"a":1}}' % (command_id.encode(), state.encode()),
    )


def message(text: str, importance: int = 0) -> Message:
    return Message(topic="t", payload=text.encode(), importance=importance)


def payloads(messages: list[Message]) -> list[str]:
    return [one.payload.decode() for one in messages]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with open(folder / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def write_until_full(store: Store) -> None:
    for number in range(200):
        store.add_command(row(f"c{number}"), [message("x" * 4000)])


def test_an_id_is_recorded_once_for_good(store: Store) -> None:
    assert store.add_command(row("a"), [message("first")]) is None
    known = store.add_command(row("a", "running"), [message("second")])
    assert known is not None
    assert known.state == "accepted"
    assert payloads(store.pending_messages(10)) == ["first"]


def test_what_was_recorded_is_there_after_the_process_was_killed(tmp_path: Path) -> None:
    code = (
        "import os,sys; sys.path.insert(0, sys.argv[2]); from agent.store import *; from agent.records import *\n"
        "s = Store(sys.argv[1])\n"
        "r = CommandRow(id='a', verb='nap', arguments=b'{}', state='accepted', sequence=0, state_json=b'{}')\n"
        "s.add_command(r, [Message(topic='t', payload=b'told')]); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(PROJECT)], check=False)
    store = Store(tmp_path)
    assert [one.id for one in store.unfinished_commands()] == ["a"]
    assert payloads(store.pending_messages(10)) == ["told"]


def test_the_database_is_synchronous_to_the_last_byte(store: Store) -> None:
    assert store._open().execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._open().execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_state_and_the_message_that_tells_of_it_are_one(store: Store) -> None:
    store.add_command(row("a"), [])
    store.update_command("a", "succeeded", 2, b'{"x":1}', [message("end")])
    known = store.find_command("a")
    assert known is not None
    assert (known.state, known.sequence, known.state_json) == ("succeeded", 2, b'{"x":1}')
    assert payloads(store.pending_messages(10)) == ["end"]


def test_old_commands_lose_their_results_but_not_their_ids(store: Store) -> None:
    for number in range(5):
        store.add_command(row(f"c{number}", "succeeded"), [])
    store.trim_commands(2)
    kept = [store.find_command(f"c{number}") for number in range(5)]
    assert ["result" in one.state_json.decode() for one in kept if one] == [False, False, False, True, True]
    assert store.add_command(row("c0"), []) is not None


def test_events_go_first_when_there_is_no_room_and_final_states_last(store: Store) -> None:
    for number in range(4):
        store.add_messages([message(f"event {number} " + "x" * 300, 0), message(f"state {number} " + "x" * 300, 3)])
    dropped = store.bound_messages(2200, 3600)
    assert dropped == {"events": 3}
    assert [text[:7] for text in payloads(store.pending_messages(10))] == [
        "state 0",
        "state 1",
        "state 2",
        "event 3",
        "state 3",
    ]


def test_age_is_not_counted_by_the_wall_clock(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_messages([message("a")])
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert store.bound_messages(1 << 20, 60) == {}


def test_a_message_from_an_earlier_boot_gets_its_age_from_this_one(store: Store) -> None:
    store.add_messages([message("a")])
    store._open().execute("UPDATE outbox SET boot_id='before', created_s=-1e9")
    assert store.bound_messages(1 << 20, 60) == {}
    assert payloads(store.pending_messages(5)) == ["a"]


def test_messages_that_are_too_old_are_dropped_and_counted(store: Store) -> None:
    store.add_messages([message("a", 3)])
    store._open().execute("UPDATE outbox SET created_s = created_s - 100")
    assert store.bound_messages(1 << 20, 60) == {"states": 1}


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"\0" * 8192])
def test_a_broken_database_is_kept_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "agent.db").write_bytes(content)
    store = Store(tmp_path)
    assert store.add_command(row("a"), []) is None
    assert (tmp_path / "agent.db.broken-1").read_bytes() == content
    assert "agent.db.broken-1" in store.note
    assert "not remembered" in store.note


def test_a_page_overwritten_by_a_bad_disk_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(200):
        store.add_command(row(f"c{number}"), [])
    store.close()
    with open(tmp_path / "agent.db", "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(12 * 4096))
    again = Store(tmp_path)
    assert again.note
    assert again.add_command(row("new"), []) is None


def test_a_full_disk_is_said_and_the_old_rows_stay(small_disk: Path) -> None:
    store = Store(small_disk)
    store.add_command(row("before"), [])
    fill(small_disk)
    with pytest.raises(StoreUnavailable, match="full"):
        write_until_full(store)
    assert store.find_command("before") is not None
    (small_disk / "ballast").unlink()
    assert store.add_command(row("after"), []) is None
    store.close()


def test_messages_wait_in_memory_while_the_disk_is_full_and_the_disk_is_used_again(small_disk: Path) -> None:
    store = Store(small_disk)
    outbox = Outbox(store, 16 << 20, 3600)
    fill(small_disk)
    while not outbox.unavailable:
        outbox.add(message("x" * 4000))
    outbox.add(message("in memory", 3))
    waiting = outbox.pending((), 1000)
    assert waiting[-1].payload == b"in memory"
    assert waiting[-1].id < 0
    (small_disk / "ballast").unlink()
    outbox.add(message("on disk", 3))
    assert outbox.unavailable == ""
    outbox.done([one.id for one in outbox.pending((), 1000)])
    assert outbox.pending((), 10) == []
    store.close()


def test_a_state_folder_that_cannot_be_made_is_said_and_nothing_is_raised_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "state")
    outbox = Outbox(store, 1 << 20, 3600)
    outbox.add(message("a"))
    assert "Not a directory" in outbox.unavailable
    assert payloads(outbox.pending((), 5)) == ["a"]


def test_memory_is_bounded_too_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outbox = Outbox(Store(tmp_path / "file" / "state"), 1 << 20, 3600)
    for number in range(30):
        outbox.add(message(f"{number}" + "x" * 60_000))
    assert outbox.dropped["no_disk"] > 0
    assert len(outbox.pending((), 100)) + outbox.dropped["no_disk"] == 30


def test_messages_in_flight_are_not_handed_out_twice(store: Store) -> None:
    outbox = Outbox(store, 1 << 20, 3600)
    outbox.add(message("a"), message("b"), message("c"))
    first = outbox.pending((), 2)
    assert payloads(first) == ["a", "b"]
    assert payloads(outbox.pending([one.id for one in first], 2)) == ["c"]


def test_a_write_is_judged_by_its_own_outcome_not_by_that_of_another_thread(tmp_path: Path) -> None:
    store = Store(tmp_path)
    outbox = Outbox(store, 1 << 20, 3600.0)

    def fail(_messages: list[Message]) -> None:
        raise StoreUnavailable("full")

    outbox.wake = lambda: outbox._say("")  # another thread's write, which the disk took
    assert outbox.record(fail, [message("a")]) is False
    outbox.wake = lambda: outbox._say("full")
    assert outbox.record(store.add_messages, [message("b")]) is True
    store.close()


def test_messages_that_wait_are_not_read_again_and_again(store: Store) -> None:
    """A broker that refuses a topic keeps megabytes waiting; only what is due is read."""
    store.add_messages([message(str(number)) for number in range(6)])
    first = store.pending_messages(3)
    assert payloads(store.pending_messages(2, {one.id for one in first})) == ["3", "4"]


def test_a_row_that_is_no_json_does_not_cost_the_database(store: Store) -> None:
    store.add_command(row("a", "succeeded"), [])
    store.update_command("a", "succeeded", 1, b"{no json", [])
    with pytest.raises(StoreUnavailable):
        store.trim_commands(0)
    assert store.note == ""
    assert store.find_command("a") is not None
