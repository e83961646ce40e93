"""Which runners there are: the files of this folder that say what backends they have. There is no list to edit."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

import msgspec

from runners.contract import Backend, Runner, RuntimeUnavailable, Verdict
from runners.model import ModelInfo

FOLDER = Path(__file__).parent
# A runner is told by its constant, so that modules which are none need not be imported.
MARK = re.compile(r"^BACKENDS\b.*=", re.MULTILINE)
NAME_LINE = re.compile(r"""^NAME\b[^=\n]*=\s*["']([^"'\n]+)["']""", re.M)
LAYER_LINE = re.compile(r"^LAYER\b[^=\n]*=\s*(\d)\b", re.M)
BACKENDS_BLOCK = re.compile(r"^BACKENDS\b[^=\n]*=\s*\((.*?)\)\s*^(?=\S)", re.M | re.S)
BACKEND = re.compile(r"""\bBackend\(\s*name=["']([^"'\n]+)["']""")


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A runner as its source text tells: what its checks are called, without importing it.

    Attributes:
        backends: their names, in order.
    """

    name: str
    layer: int
    backends: tuple[str, ...]


@functools.cache
def listed(folder: Path = FOLDER) -> tuple[Listed, ...]:
    """All runners, in the order of `runners`; one whose text is not as usual is imported to be asked."""
    found = []
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8")
        if MARK.search(text):
            found.append(read_listed(text) or _asked(path.stem))
    return tuple(found)


def read_listed(text: str) -> Listed | None:
    """What the source text of a runner says; None when it says it in an unusual way."""
    name, layer, block = NAME_LINE.search(text), LAYER_LINE.search(text), BACKENDS_BLOCK.search(text)
    names = BACKEND.findall(block[1]) if block else []
    if not (name and layer and block and names) or block[1].count("Backend(") != len(names):
        return None
    return Listed(name=name[1], layer=int(layer[1]), backends=tuple(names))


def _asked(stem: str) -> Listed:
    module = _load(stem)
    return Listed(name=module.NAME, layer=module.LAYER, backends=tuple(b.name for b in module.BACKENDS))


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
