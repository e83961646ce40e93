"""What a check reads: a `Host` that notes what it is asked for, and a command that prints it for one probe, as JSON."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import ItemsView, Iterator, Mapping
from pathlib import Path
from typing import Any

from probes.child import load
from probes.host import CommandResult, Host
from probes.listing import probe_files


class Environ(Mapping[str, str]):
    """Notes which variables are asked for by name."""

    def __init__(self, real: Mapping[str, str], asked: set[tuple[str, str]]) -> None:
        self._real, self._asked = real, asked

    def __getitem__(self, name: str) -> str:
        self._asked.add(("variable", name))
        return self._real[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)

    def items(self) -> ItemsView[str, str]:
        return self._real.items()


class ReadingHost(Host):
    """Notes every path, pattern, command, library and variable that it is asked for."""

    def __init__(self, root: str | Path = "/") -> None:
        super().__init__(root)
        self.asked: set[tuple[str, str]] = set()
        self._real_environ = self.environ
        self.environ = Environ(self.environ, self.asked)

    def path(self, path: str) -> Path:
        self.asked.add(("path", path))
        return super().path(path)

    def _file(self, path: str) -> Path:
        self.asked.add(("path", path))
        return super()._file(path)

    def glob(self, pattern: str) -> list[str]:
        asked = {*self.asked}
        found = super().glob(pattern)
        self.asked &= asked  # the folders on the way alone are nothing
        self.asked.add(("path", pattern))
        return found

    def names(self, folder: str, pattern: str) -> list[str]:
        asked = {*self.asked}
        found = super().names(folder, pattern)
        self.asked &= asked  # the folder alone is nothing
        self.asked.add(("path", f"{folder}/{pattern}"))
        return found

    def run(self, argv: list[str], timeout_s: float = 10.0) -> CommandResult:
        if self.executes:
            self.asked.add(("command", argv[0]))
        asking, self.environ = self.environ, self._real_environ  # a command gets all of it
        try:
            return super().run(argv, timeout_s)
        finally:
            self.environ = asking

    def load_library(self, name: str, *, local: bool = False) -> Any:
        self.asked.add(("library", name))
        return super().load_library(name, local=local)


def what_it_reads(name: str) -> set[tuple[str, str]]:
    """Run a probe here; also what Python opened meanwhile, and which libraries were mapped in the end."""
    host = ReadingHost()
    opened: set[tuple[str, str]] = set()
    module = load(probe_files()[name])

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith("/"):
            opened.add(("path", arguments[0]))

    sys.addaudithook(note)
    module.check(host)
    seen = host.asked | opened
    mapped = re.findall(r"\s(/\S+\.so\S*)$", Path("/proc/self/maps").read_text(), re.M)
    return seen | {("mapped", path) for path in mapped}


if __name__ == "__main__":
    answer = json.dumps(sorted(what_it_reads(sys.argv[1])))
    with os.fdopen(int(sys.argv[2]), "w") as out:
        out.write(answer)
    os._exit(0)
