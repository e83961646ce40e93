"""Which runners there are: the files of this folder that say what backends they have. There is no list to edit."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

from runners.contract import Backend, Runner, RuntimeUnavailable, Verdict
from runners.model import ModelInfo

FOLDER = Path(__file__).parent
# A runner is told by its constant, so that modules which are none need not be imported.
MARK = re.compile(r"^BACKENDS\b.*=", re.MULTILINE)


def runners() -> Mapping[str, Runner]:
    """All runners by name, in alphabetical order of their files; their vendor libraries are not imported.

    Returns: a file that can't be imported is among them, and says why when asked to accept a model.
    """
    return find(FOLDER)


def runner(name: str) -> Runner:
    """The runner of this name.

    Raises:
        RuntimeUnavailable: there is none.
    """
    known = runners()
    if name not in known:
        raise RuntimeUnavailable(f"no runtime is called {name!r}", f"there are: {', '.join(known)}")
    return known[name]


@functools.cache
def find(folder: Path) -> Mapping[str, Runner]:
    """The runners whose files lie in `folder`, imported as modules of this package."""
    found: dict[str, Runner] = {}
    for path in sorted(folder.glob("*.py")):
        if MARK.search(path.read_text("utf-8")):
            module = _load(path.stem)
            found[module.NAME] = module
    return MappingProxyType(found)


def _load(name: str) -> Runner:
    try:
        return cast(Runner, importlib.import_module(f"runners.{name}"))
    except (ImportError, SyntaxError) as error:
        return cast(Runner, Unusable(name, f"runners/{name}.py can't be imported: {error}"))


class Unusable:
    """Stands for a runner whose file can't be imported: it must not vanish from a plan."""

    LAYER = 4
    BACKENDS: tuple[Backend, ...] = ()

    def __init__(self, name: str, reason: str) -> None:
        self.NAME = name
        self._reason = reason

    def accepts(self, model: ModelInfo) -> Verdict:
        """No, and why the file can't be imported."""
        return Verdict(accepted=False, reason=self._reason, remedy="install edge-agent again")

    def check(self, backend: str) -> NoReturn:
        """Raise `RuntimeUnavailable`."""
        raise RuntimeUnavailable(self._reason)

    def open(self, model: ModelInfo, options: Any) -> NoReturn:
        """Raise `RuntimeUnavailable`."""
        raise RuntimeUnavailable(self._reason)
