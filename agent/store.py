"""What must outlive a power cut, in one SQLite file: commands with their states, the outbox, a few values.

WAL with synchronous=FULL: what a method has returned from is on disk. A disk that is full or read-only raises
`StoreUnavailable`, and the next write tries again; a broken file is moved aside and a new one begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from agent.clock import boot_id, monotonic_s
from agent.records import CommandRow, Message

FILE_NAME = "agent.db"
FULL_STATES_KEPT = 500  # of older commands only id, verb, state and error stay
BUSY_TIMEOUT_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS commands (
  id TEXT PRIMARY KEY, verb TEXT NOT NULL, arguments BLOB, issued_at TEXT, expires_at TEXT, state TEXT NOT NULL,
  sequence INTEGER NOT NULL, state_json BLOB NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  response_topic TEXT, correlation BLOB,
  number INTEGER NOT NULL, trimmed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS commands_by_state ON commands (state) WHERE state IN ('accepted', 'running');
CREATE INDEX IF NOT EXISTS commands_by_number ON commands (number) WHERE trimmed = 0;
CREATE TABLE IF NOT EXISTS outbox (
  id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, payload BLOB NOT NULL, retain INTEGER NOT NULL,
  importance INTEGER NOT NULL, correlation BLOB, boot_id TEXT NOT NULL, created_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class StoreUnavailable(Exception):
    """Nothing can be written at the moment; `reason` says why, for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Store:
    """The database of one agent. All methods may be called from any thread.

    Attributes:
        note: a sentence on what was lost when it was opened; "" when nothing was.
    """

    def __init__(self, state_dir: str | Path) -> None:
        self.path = Path(state_dir) / FILE_NAME
        self.note = ""
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with contextlib.suppress(StoreUnavailable):  # whoever writes first is told
            self._open()

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    # -- commands

    def add_command(self, row: CommandRow, messages: list[Message]) -> CommandRow | None:
        """Record a new command together with the messages that tell of it.

        Returns: None when it was recorded, or the row that has had this id before.

        Raises:
            StoreUnavailable: it is not recorded.
        """
        with self._writing() as db:
            known = self._find(db, row.id)
            if known is not None:
                return known
            db.execute(
                "INSERT INTO commands (id, verb, arguments, issued_at, expires_at, state, sequence, state_json,"
                " attempts, response_topic, correlation, number)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,(SELECT COALESCE(MAX(number),0)+1 FROM commands WHERE trimmed=0))",
                (
                    row.id,
                    row.verb,
                    row.arguments,
                    row.issued_at,
                    row.expires_at,
                    row.state,
                    row.sequence,
                    row.state_json,
                    row.attempts,
                    row.response_topic,
                    row.correlation,
                ),
            )
            self._insert(db, messages)
            return None

    def update_command(
        self,
        command_id: str,
        state: str,
        sequence: int,
        state_json: bytes,
        messages: list[Message],
        starts: bool = False,
    ) -> None:
        """Record a command's new state together with the messages that tell of it; `starts` counts an attempt.

        Raises:
            StoreUnavailable: nothing is recorded.
        """
        with self._writing() as db:
            db.execute(
                "UPDATE commands SET state=?, sequence=?, state_json=?, attempts=attempts+? WHERE id=?",
                (state, sequence, state_json, int(starts), command_id),
            )
            self._insert(db, messages)

    def find_command(self, command_id: str) -> CommandRow | None:
        """The record of a command, or None.

        Raises:
            StoreUnavailable: it can't be told.
        """
        with self._reading() as db:
            return self._find(db, command_id)

    def unfinished_commands(self) -> list[CommandRow]:
        """Commands that were accepted or running when the agent ended, oldest first.

        Raises:
            StoreUnavailable: it can't be told.
        """
        with self._reading() as db:
            ids = db.execute("SELECT id FROM commands WHERE state IN ('accepted','running') ORDER BY number").fetchall()
            rows = [self._find(db, command_id) for (command_id,) in ids]
        return [row for row in rows if row is not None]

    def trim_commands(self, trim: int = FULL_STATES_KEPT) -> None:
        """Forget arguments and results of finished commands but the newest `trim`; their ids stay for good.

        Raises:
            StoreUnavailable: nothing is changed.
        """
        with self._writing() as db:
            db.execute(
                "UPDATE commands SET trimmed=1, arguments=NULL,"
                " state_json=json_remove(CAST(state_json AS TEXT),'$.result')"
                " WHERE trimmed=0 AND state NOT IN ('accepted','running')"
                " AND number <= (SELECT MAX(number) FROM commands WHERE trimmed=0) - ?",
                (trim,),
            )

    # -- outbox

    def add_messages(self, messages: list[Message]) -> None:
        """Keep messages until the broker has them.

        Raises:
            StoreUnavailable: they are not kept.
        """
        with self._writing() as db:
            self._insert(db, messages)

    def pending_messages(self, limit: int, skip: Collection[int] = ()) -> list[Message]:
        """Messages in order, at most `limit`; the payloads of those in `skip` are not even read.

        Raises:
            StoreUnavailable: it can't be told.
        """
        with self._reading() as db:
            rows = db.execute(
                "SELECT id, topic, payload, retain, importance, correlation FROM outbox"
                " WHERE id NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?",
                (json.dumps(list(skip)), limit),
            ).fetchall()
        return [
            Message(
                id=row[0],
                topic=row[1],
                payload=row[2],
                retain=bool(row[3]),
                importance=row[4],
                correlation=row[5] or b"",
            )
            for row in rows
        ]

    def delete_messages(self, ids: list[int]) -> None:
        """Forget messages: the broker has them.

        Raises:
            StoreUnavailable: they are still there.
        """
        with self._writing() as db:
            db.executemany("DELETE FROM outbox WHERE id=?", [(number,) for number in ids])

    def bound_messages(self, limit_bytes: int, age_s: float) -> dict[str, int]:
        """Drop messages that are too old, then the least important and oldest until the rest fits.

        Age counts within one boot: a message from an earlier one gets its age from when this boot first saw it,
        since no clock is sure across a power cut.

        Returns: how many were dropped, by importance ("events", "progress", "reports", "states").

        Raises:
            StoreUnavailable: nothing was dropped.
        """
        now_s, boot = monotonic_s(), boot_id()
        with self._writing() as db:
            db.execute("UPDATE outbox SET boot_id=?, created_s=? WHERE boot_id<>?", (boot, now_s, boot))
            old = db.execute("SELECT id, importance FROM outbox WHERE created_s < ?", (now_s - age_s,)).fetchall()
            size = "LENGTH(payload)+LENGTH(topic)+COALESCE(LENGTH(correlation),0)+64"
            over = db.execute(
                f"SELECT id, importance FROM (SELECT id, importance, SUM({size}) OVER"  # noqa: S608
                " (ORDER BY importance DESC, id DESC) AS total FROM outbox WHERE created_s >= ?) WHERE total > ?",
                (now_s - age_s, limit_bytes),
            ).fetchall()
            db.executemany("DELETE FROM outbox WHERE id=?", [(number,) for number, _ in old + over])
        names = ("events", "progress", "reports", "states")
        dropped: dict[str, int] = {}
        for _, importance in old + over:
            dropped[names[importance]] = dropped.get(names[importance], 0) + 1
        return dropped

    # -- values

    def value(self, key: str) -> str | None:
        """A kept value, or None.

        Raises:
            StoreUnavailable: it can't be told.
        """
        with self._reading() as db:
            row = db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_value(self, key: str, value: str) -> None:
        """Keep a value.

        Raises:
            StoreUnavailable: the old one stays.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO meta VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value=excluded.value", (key, value)
            )

    # -- below

    @staticmethod
    def _find(db: sqlite3.Connection, command_id: str) -> CommandRow | None:
        row = db.execute(
            "SELECT id, verb, arguments, issued_at, expires_at, state, sequence, state_json, attempts,"
            " response_topic, correlation FROM commands WHERE id=?",
            (command_id,),
        ).fetchone()
        if row is None:
            return None
        return CommandRow(
            id=row[0],
            verb=row[1],
            arguments=row[2] or b"{}",
            issued_at=row[3],
            expires_at=row[4],
            state=row[5],
            sequence=row[6],
            state_json=row[7] if isinstance(row[7], bytes) else str(row[7]).encode(),
            attempts=row[8],
            response_topic=row[9] or "",
            correlation=row[10] or b"",
        )

    @staticmethod
    def _insert(db: sqlite3.Connection, messages: list[Message]) -> None:
        boot, now_s = boot_id(), monotonic_s()
        db.executemany(
            "INSERT INTO outbox (topic, payload, retain, importance, correlation, boot_id, created_s)"
            " VALUES (?,?,?,?,?,?,?)",
            [(m.topic, m.payload, m.retain, m.importance, m.correlation, boot, now_s) for m in messages],
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on disk at its end, or not at all."""
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk may have rolled it back already
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._connection or self._open()
            try:
                yield db
            except sqlite3.DatabaseError as error:
                if is_broken(error):
                    self._set_aside(error)
                raise StoreUnavailable(f"{self.path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._connect()
        except OSError as error:
            raise StoreUnavailable(f"{error.filename or self.path}: {error.strerror}") from error
        except sqlite3.DatabaseError as error:
            if not is_broken(error):
                raise StoreUnavailable(f"{self.path}: {error}") from error
            self._set_aside(error)
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as again:
                raise StoreUnavailable(f"{self.path}: {again}") from again
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA cache_size=-256")  # KiB: the daemon is to stay small
            db.executescript(SCHEMA)
            answer = db.execute("PRAGMA quick_check(1)").fetchone()
            if answer != ("ok",):
                raise sqlite3.DatabaseError(f"malformed: {answer[0]}")
        except BaseException:
            db.close()
            raise
        return db

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Keep the broken file for a person, and begin anew: an agent off the air helps nobody."""
        self.close()
        number = 1
        while (aside := self.path.with_name(f"{FILE_NAME}.broken-{number}")).exists():
            number += 1
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        self.note = (
            f"{self.path} was broken ({error}) and is kept as {aside.name}; "
            "commands from before are not remembered, so a second copy of one would be carried out again"
        )


def is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is damaged, as opposed to a full disk or missing permission."""
    text = str(error)
    if "malformed JSON" in text:  # of one row, as SQLite's JSON functions say it; the file is whole
        return False
    return any(mark in text for mark in ("malformed", "not a database", "encrypted"))
