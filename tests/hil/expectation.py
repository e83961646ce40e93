"""What is promised for a board: one TOML file each, and the choice of the file that is for a machine."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from probes.contract import DeviceKind

FOLDER = Path(__file__).parent / "expectations"


class Promise(enum.Enum):
    """What an expectation file says about a subject."""

    WORKS = "works"
    ABSENT = "absent"
    OPTIONAL = "optional"  # may be absent; when it is there it works


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is promised for one probe, or for one "<runtime>/<backend>".

    Attributes:
        device_kind: where it is to have been executed; None for a check that only reads.
        because: why it is absent or optional; is the reason of a SKIP.
    """

    expect: Promise
    device_kind: DeviceKind | None = None
    because: str = ""


class ExpectedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that `edge-agent run` is to run.

    Attributes:
        model: "<package>/<file name>" on the device, found without importing the package.
        inputs: a prompt, or files in the form of `model`.
        input_files: whether `inputs` are files.
        arguments: further ones for `edge-agent run`.
        answer: text that must be in the answer.
        device_kind: where all of it must have run; "gpu" is also demanded of the agent.
    """

    name: str
    model: str
    inputs: tuple[str, ...]
    input_files: bool = False
    arguments: tuple[str, ...] = ()
    answer: str
    device_kind: DeviceKind


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which machines a file is for; what is not named is not looked at.

    Attributes:
        compatible: any of these is in the device tree, e.g. "nvidia,p3767-0005".
        l4t: the major release, e.g. 36.
        nvidia_gpu: whether the driver for PCI cards has one.
        nvidia_gpu_name: a part of its name.
        render_node: whether any graphics driver offers one in /dev/dri.
    """

    architecture: str | None = None
    compatible: tuple[str, ...] = ()
    l4t: int | None = None
    nvidia_gpu: bool | None = None
    nvidia_gpu_name: str = ""
    render_node: bool | None = None


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One board's file.

    Attributes:
        board: the file's name.
        title: the board in words.
        seen: date of the last run on such a board that passed; "" for none yet.
        device: fields of the report's identity with what they must be like (shell patterns).
        backends: subject -> promise.
    """

    board: str
    title: str
    seen: str
    match: Match
    device: Mapping[str, str] = {}
    backends: Mapping[str, Expected]
    runs: tuple[ExpectedRun, ...] = ()


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a machine to choose its file; see `hil.target.read_machine`."""

    architecture: str = ""
    compatible: tuple[str, ...] = ()
    l4t: int | None = None
    nvidia_gpus: tuple[str, ...] = ()
    render_nodes: tuple[str, ...] = ()


def load(board: str, folder: Path = FOLDER) -> Expectation:
    """The file of this board.

    Raises:
        LookupError: there is none; the message names those there are.
        ValueError: it is wrong; the message names file and key.
    """
    path = folder / f"{board}.toml"
    if not path.exists():
        raise LookupError(f"no expectation file {board!r}; there are: {', '.join(boards(folder))}")
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Expectation)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from None


def boards(folder: Path = FOLDER) -> list[str]:
    """All boards with a file, in alphabetical order."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def fits(match: Match, machine: Machine) -> bool:
    """Whether a file is for this machine."""
    wanted = {
        "architecture": match.architecture in (None, machine.architecture),
        "compatible": not match.compatible or bool(set(match.compatible) & set(machine.compatible)),
        "l4t": match.l4t in (None, machine.l4t),
        "nvidia_gpu": match.nvidia_gpu in (None, bool(machine.nvidia_gpus)),
        "nvidia_gpu_name": any(match.nvidia_gpu_name in name for name in machine.nvidia_gpus or ("",)),
        "render_node": match.render_node in (None, bool(machine.render_nodes)),
    }
    return all(wanted.values())


def choose(machine: Machine, expectations: Sequence[Expectation]) -> Expectation:
    """The one file that is for this machine.

    Raises:
        LookupError: none is, or more than one; the message says what the machine is like.
    """
    fitting = [expectation for expectation in expectations if fits(expectation.match, machine)]
    if len(fitting) == 1:
        return fitting[0]
    found = f"more than one: {', '.join(e.board for e in fitting)}" if fitting else "none"
    raise LookupError(
        f"expectation file for this machine ({describe(machine)}): {found}. Name one with --hil-expect, or write "
        "tests/hil/expectations/<board>.toml (docs/hil.md)"
    )


def describe(machine: Machine) -> str:
    """A machine in one line."""
    words = [machine.architecture or "unknown architecture"]
    words += [machine.compatible[0]] if machine.compatible else []
    words += [f"L4T R{machine.l4t}"] if machine.l4t is not None else []
    words += list(machine.nvidia_gpus) or ["no NVIDIA card"]
    words += list(machine.render_nodes) or ["no render node"]
    return ", ".join(words)
