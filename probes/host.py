"""How a probe sees the machine: files, commands, environment, clock and libraries, all through one object.

`Host(root=DIR)` reads a *recorded device*: a folder with the files of some device. Nothing is executed then.
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import functools
import glob
import os
import select
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from probes import accounts

READ_LIMIT_BYTES = 1 << 20
PART_BYTES = 1 << 18
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container")
LINKS_LIMIT = 40  # as the kernel follows in one path, path_resolution(7)
RECORDED = "a recorded device: nothing is executed"
QUICK = "asked to be quick: nothing was executed"
RECORDED_COMMANDS = ".edge-agent/commands.json"  # in a recorded device: command line -> what it printed


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a command answered.

    Attributes:
        returncode: its exit status; negative for a signal; None when it was not found or did not end in time.
        reason: empty, or why there is no return code.
        pid: the process that it was, by which counters know it; None when none was started here.
    """

    returncode: int | None
    stdout: str = ""
    stderr: str = ""
    reason: str = ""
    pid: int | None = None


class Host:
    """The machine, or a recorded one below `root`; its methods take the device's own paths ("/etc/...").

    Attributes:
        recorded: whether this is a recorded device.
        executes: whether checks may execute anything (commands, libraries, kernels); when not, `not_executed` says why,
            and a probe that executes answers UNKNOWN with that reason, and with the facts that it could read.
        as_user: whose permissions count, see `readable`; "" for this process's user.
        deep: whether a check may take long for more certainty.
    """

    def __init__(
        self,
        root: str | Path = "/",
        environ: Mapping[str, str] | None = None,
        *,
        quick: bool = False,
        as_user: str = "",
        deep: bool = False,
    ) -> None:
        """Prepare; nothing is read.

        Args:
            root: folder of a recorded device, or "/".
            environ: the environment that counts; None for this process's, or none for a recorded device.
            quick: only read; execute nothing.
            as_user: name or number of the user whose permissions count; "" for this process's.
            deep: take long for more certainty.
        """
        self.root = Path(root)
        self.recorded = self.root.resolve() != Path("/")
        self.executes = not (self.recorded or quick)
        self.not_executed = "" if self.executes else RECORDED if self.recorded else QUICK
        self.as_user = as_user
        self.deep = deep
        self.environ: Mapping[str, str] = ({} if self.recorded else os.environ) if environ is None else environ

    def path(self, path: str) -> Path:
        """Where the device's `path` lies on this machine, its last part not followed when it is a link.

        In a recorded device links are followed inside of its root, and nothing leads out of it.
        """
        if not self.recorded:
            return Path("/") / path
        *folders, name = [part for part in path.split("/") if part and part != "."] or [""]
        return self._inside(folders) / name if name != ".." else self._inside([*folders, name])

    def _inside(self, parts: Sequence[str]) -> Path:
        """A path below the root with every link in it followed as the device would.

        Raises:
            OSError: the links form a ring.
        """
        place: list[str] = []
        left, links = list(parts), 0
        while left:
            part = left.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                place = place[:-1]
                continue
            here = self.root.joinpath(*place, part)
            if not here.is_symlink():
                place.append(part)
                continue
            links += 1
            if links > LINKS_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(here))
            target = os.readlink(here)
            if target.startswith("/"):
                place = []
            left = [*target.split("/"), *left]
        return self.root.joinpath(*place)

    def _file(self, path: str) -> Path | str:
        """Like `path`, with the last part followed too."""
        return self._inside(path.split("/")) if self.recorded else f"/{path.lstrip('/')}"

    def exists(self, path: str) -> bool:
        """Whether `path` is there; a dangling link counts: a recorded device may lack its target."""
        try:
            return os.path.lexists(self.path(path))
        except OSError:
            return False

    def text(self, path: str) -> str | None:
        """The text of a small file with NUL bytes kept, or None when it is missing, no file or can't be read.

        sysfs answers EAGAIN for a block that is powered off; that, too, is None (facts: gpu-thermal).
        """
        try:
            data = b"".join(self.parts(path))
        except OSError:
            return None
        return data.decode("utf-8", "replace")

    def parts(self, path: str, limit_bytes: int = READ_LIMIT_BYTES) -> Iterator[bytes]:
        """The bytes of a file, a part at a time, for files too large to hold; nothing is held here.

        Args:
            path: the device's own path.
            limit_bytes: no more is read.

        Raises:
            OSError: it is missing, no regular file, can't be read, or not now (EAGAIN).
        """
        with open(self._file(path), "rb", buffering=0, opener=open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            # procfs gives a page at a time: one read of /proc/cpuinfo or maps is not the whole
            while limit_bytes > 0:
                part = file.read(min(limit_bytes, PART_BYTES))
                if part is None:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
                if not part:
                    return
                limit_bytes -= len(part)
                yield part

    def line(self, path: str) -> str | None:
        """The first line of a small file without NUL bytes and white space, or None."""
        text = self.text(path)
        return None if text is None else text.replace("\0", "").strip().partition("\n")[0].strip()

    def integer(self, path: str) -> int | None:
        """The number in a file such as sysfs's, or None when there is none."""
        try:
            return int(self.line(path) or "")
        except ValueError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """The device's paths that match, sorted; in a recorded device, too, a link leads to no file outside of it."""
        if not self.recorded:
            return sorted(glob.glob(f"/{pattern.lstrip('/')}"))
        found = [""]
        for part in (part for part in pattern.split("/") if part):
            found = [f"{folder}/{name}" for folder in found for name in self._names(folder, part)]
        return sorted(path for path in found if path)

    def _names(self, folder: str, pattern: str) -> list[str]:
        """The names in a recorded device's folder that match; none when there is no such folder."""
        if not glob.has_magic(pattern):
            return [pattern] if self.exists(f"{folder}/{pattern}") else []
        try:
            names = os.listdir(self._file(folder or "/"))
        except OSError:
            return []
        return [name for name in fnmatch.filter(names, pattern) if pattern.startswith(".") or not name.startswith(".")]

    def names(self, folder: str, pattern: str) -> list[str]:
        """The names in a folder that match, sorted; [] when it can't be listed.

        The list is kept until the folder changes, as some hold thousands and are asked often. Not for /proc and /sys,
        whose folders do not tell when they change.
        """
        try:
            place = str(self._file(folder))
            return fnmatch.filter(_listed(place, os.stat(place).st_mtime_ns), pattern)
        except OSError:
            return []

    def link(self, path: str) -> str | None:
        """The target of a symbolic link as written, or None."""
        try:
            return os.readlink(self.path(path))
        except OSError:
            return None

    def readable(self, path: str) -> bool:
        """Whether the user that counts may read `path`. Only reading is tried, see `gpu_nodes`.

        Without `as_user` the kernel is asked for this process; else owner, group and modes decide (`probes.accounts`).
        """
        try:
            if self.as_user and not self.recorded:
                account = accounts.find(self.text("/etc/passwd") or "", self.text("/etc/group") or "", self.as_user)
                return account is not None and accounts.may_read(account, str(self.path(path)))
            return os.access(self._file(path), os.R_OK)
        except OSError:
            return False

    def in_container(self) -> bool:
        """Whether this looks like the inside of a container, by the marks that runtimes leave."""
        return any(self.exists(mark) for mark in CONTAINER_MARKS) or bool(self.environ.get("container"))

    def run(self, argv: list[str], timeout_s: float = 10.0) -> CommandResult:
        """Run a command to its end, or look it up when the device is a recorded one.

        Args:
            argv: the command line, no shell.
            timeout_s: seconds, > 0; the command is killed then.
        """
        if self.recorded:
            return self._recorded_command(argv)
        if not self.executes:
            return CommandResult(returncode=None, reason=f"{argv[0]}: {self.not_executed}")
        devnull, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            with subprocess.Popen(argv, stdin=devnull, stdout=pipe, stderr=pipe, env=dict(self.environ)) as process:
                try:
                    out, err = process.communicate(timeout=timeout_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    reason = f"{argv[0]}: no answer in {timeout_s:g} s"
                    return CommandResult(returncode=None, reason=reason, pid=process.pid)
        except FileNotFoundError:
            return CommandResult(returncode=None, reason=f"{argv[0]}: not found")
        except OSError as error:
            return CommandResult(returncode=None, reason=f"{argv[0]}: {error.strerror}")
        return CommandResult(
            returncode=process.returncode,
            stdout=out.decode("utf-8", "replace"),
            stderr=err.decode("utf-8", "replace"),
            pid=process.pid,
        )

    def first_line(self, argv: list[str], timeout_s: float = 3.0) -> str:
        """The first line that a command prints which never ends by itself; "" when none comes in time.

        It writes to a terminal of ours: to a pipe such programs hand over whole buffers only, long after.
        """
        if not self.executes:
            return ""
        ours, theirs = os.openpty()
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL, env=dict(self.environ)
            )
        except OSError:
            os.close(ours)
            return ""
        finally:
            os.close(theirs)
        try:
            return _read_line(ours, time.monotonic() + timeout_s)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def _recorded_command(self, argv: list[str]) -> CommandResult:
        text = self.text("/" + RECORDED_COMMANDS)
        try:
            known = msgspec.json.decode(text or "{}", type=dict[str, str])
        except msgspec.MsgspecError:
            known = {}
        answer = known.get(" ".join(argv))
        if answer is None:
            return CommandResult(returncode=None, reason=f"{argv[0]}: not in the recorded device")
        return CommandResult(returncode=0, stdout=answer)

    def load_library(self, name: str, *, local: bool = False) -> ctypes.CDLL:
        """Load a shared library. Native code may crash: only ever called in a probe's own child process.

        Args:
            name: file name or path, as dlopen takes it.
            local: keep its symbols from libraries loaded later. Needed for drivers: one that is global could answer
                in its loader's place, as both define the API's functions.

        Raises:
            OSError: with the loader's own words.
        """
        if not self.executes:
            raise OSError(f"{name}: {self.not_executed}")
        return ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL if local else ctypes.RTLD_GLOBAL)

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since 1970 by a clock that may be wrong: a Jetson boots without one."""
        return time.time()


@functools.lru_cache(64)
def _listed(folder: str, _changed_ns: int) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(folder)))


def _read_line(fd: int, end_s: float) -> str:
    text = b""
    while b"\n" not in text and len(text) < READ_LIMIT_BYTES and (left := end_s - time.monotonic()) > 0:
        if not select.select([fd], [], [], left)[0]:
            break
        try:
            part = os.read(fd, 4096)
        except OSError:  # EIO: the other end of the terminal was closed
            break
        if not part:
            break
        text += part
    return text.decode("utf-8", "replace").partition("\n")[0].rstrip("\r")


def open_without_waiting(path: str, flags: int) -> int:
    """An `opener` for `open`: a named pipe is opened at once, and not when its writer comes."""
    return os.open(path, flags | os.O_NONBLOCK)
