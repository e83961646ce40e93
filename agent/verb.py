"""What a verb is: a module in `agent/verbs/` that carries out one kind of command.

A verb has a docstring, two structs and a function; importing it is cheap, and what is heavy is imported in `run`:

    REPEATABLE = True      # whether a command that was interrupted may simply be carried out again
    CONCURRENCY = 1        # how many of this verb run at once; more wait
    class Arguments(msgspec.Struct, ..., forbid_unknown_fields=True)
    class Result(msgspec.Struct, ...)
    def run(arguments: Arguments, context: Context) -> Result
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from agent.config import Config
    from agent.survey import Survey


class VerbFailed(Exception):
    """A command can't be carried out: expected trouble, told to whoever asked.

    Attributes:
        code: stable word for programs.
        reason: one sentence.
        remedy: what to do, or "".
    """

    def __init__(self, code: str, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.remedy = remedy


class Context(Protocol):
    """What a verb may use while it carries out one command."""

    command_id: str
    config: Config
    survey: Survey

    def cancelled(self) -> bool:
        """Whether to stop: somebody asked, the deadline has passed, or the agent ends."""
        ...

    def seconds_left(self) -> float:
        """Until the deadline; never negative."""
        ...

    def progress(self, stage: str, share: float | None = None) -> None:
        """Tell what is being done, and the share done, 0 to 1; told on at most once a second."""
        ...

    def stream(self, text: str) -> None:
        """Send new text on `streams/<id>`."""
        ...

    def event(self, pipeline: str, data: Mapping[str, Any]) -> None:
        """Send one result on `events/<pipeline>`; kept until the broker has it."""
        ...

    def cancel_command(self, command_id: str) -> str:
        """Ask for another command to end.

        Returns: its state after that, e.g. "cancelled"; still "running" when it takes its time.

        Raises:
            VerbFailed: it is not known, or has ended already.
        """
        ...


class Verb(Protocol):
    """The module."""

    REPEATABLE: bool
    CONCURRENCY: int
    Arguments: type[msgspec.Struct]
    Result: type[msgspec.Struct]
    run: Callable[[Any, Context], msgspec.Struct]


def verb_names() -> list[str]:
    """Every verb there is, in alphabetical order."""
    import pkgutil

    import agent.verbs

    return sorted(module.name for module in pkgutil.iter_modules(agent.verbs.__path__))


def load_verb(name: str) -> Verb | None:
    """The verb of this name, or None when there is none."""
    import importlib.util

    if not name.isidentifier() or importlib.util.find_spec(f"agent.verbs.{name}") is None:
        return None
    module: Any = importlib.import_module(f"agent.verbs.{name}")
    return module  # type: ignore[no-any-return]
