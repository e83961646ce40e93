"""JSON Schemas of what this program sends and takes, in docs/schemas/: `python -m agent.schemas` writes them.

`--check` compares them with the code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def documents() -> Mapping[str, type]:
    """File name -> the struct that it describes."""
    from agent import wire
    from probes.contract import CapabilityReport, Finding
    from runners.model import ModelInfo
    from runners.route import Plan

    return {
        "capability-report": CapabilityReport,
        "finding": Finding,
        "model-info": ModelInfo,
        "plan": Plan,
        "command": wire.Command,
        "command-state": wire.CommandState,
        "status": wire.StatusMessage,
        "stream-chunk": wire.StreamChunk,
        "event": wire.Event,
        **verb_documents(),
    }


def verb_documents() -> Mapping[str, type]:
    """Of each verb its arguments and its result: "probe-arguments", "probe-result"."""
    from agent.verb import load_verb, verb_names

    verbs = {name: load_verb(name) for name in verb_names()}
    arguments = {f"{name}-arguments": verb.Arguments for name, verb in verbs.items() if verb}
    return {**arguments, **{f"{name}-result": verb.Result for name, verb in verbs.items() if verb}}


def schema_text(struct: type) -> str:
    """The schema of one struct, as its file holds it."""
    schema: dict[str, Any] = {"$schema": DIALECT, **msgspec.json.schema(struct)}
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2).decode() + "\n"


def differences(folder: Path) -> list[str]:
    """What is wrong with the files of a folder: a sentence each; none when they say what the code says."""
    wrong = []
    texts = {f"{name}.json": schema_text(struct) for name, struct in documents().items()}
    for name, text in texts.items():
        path = folder / name
        if not path.exists():
            wrong.append(f"{path} is missing")
        elif path.read_text(encoding="utf-8") != text:
            wrong.append(f"{path} is not what the code says")
    strays = sorted(path.name for path in folder.glob("*.json") if path.name not in texts)
    return wrong + [f"{folder / name} describes nothing" for name in strays]


def write(folder: Path) -> None:
    """Write all schemas."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, struct in documents().items():
        (folder / f"{name}.json").write_text(schema_text(struct), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write or compare; 1 when `--check` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m agent.schemas", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 when a file differs")
    options = parser.parse_args(arguments)
    if not options.check:
        write(FOLDER)
        return 0
    wrong = differences(FOLDER)
    for sentence in wrong:
        print(f"agent.schemas: {sentence}; run: make schemas", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
