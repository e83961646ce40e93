"""Verbs: what the contract's document and the schemas say about each is what the code takes and answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.schemas import FOLDER
from agent.verb import Verb, load_verb, verb_names

PROJECT = Path(__file__).parents[2]
DOCUMENT = (PROJECT / "docs" / "mqtt.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \|$", re.M)
NAME = re.compile(r"`(\w+)`")


def verb(name: str) -> Verb:
    found = load_verb(name)
    assert found is not None
    return found


def section(title: str) -> str:
    return DOCUMENT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows() -> dict[str, tuple[str, str]]:
    """Of the first table of the section: verb -> cells with arguments and result."""
    table = section("Verbs").partition("\n\n")[0]
    return {name: (arguments, result) for name, arguments, result in ROW.findall(table)}


def test_the_document_has_every_verb_and_no_other() -> None:
    assert sorted(rows()) == verb_names()


@pytest.mark.parametrize("name", verb_names())
def test_the_document_names_every_argument_and_every_field_of_the_result(name: str) -> None:
    arguments, result = rows()[name]
    assert set(NAME.findall(arguments)) == set(verb(name).Arguments.__struct_fields__)
    assert set(NAME.findall(result)) == set(verb(name).Result.__struct_fields__)


def test_the_document_tells_the_defaults_of_probe() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section("Verbs").partition("| argument |")[2], re.M))
    fields = {field.name: field.default for field in msgspec.structs.fields(verb("probe").Arguments)}
    assert told == {name: msgspec.json.encode(default).decode() for name, default in fields.items()}


@pytest.mark.parametrize("name", verb_names())
def test_each_verb_has_its_schemas_and_knows_no_other_argument(name: str) -> None:
    schema = msgspec.json.decode((FOLDER / f"{name}-arguments.json").read_bytes())
    assert schema["$defs"]["Arguments"]["additionalProperties"] is False
    assert set(schema["$defs"]["Arguments"]["properties"]) == set(verb(name).Arguments.__struct_fields__)
    assert (FOLDER / f"{name}-result.json").exists()


def codes(path: Path) -> Iterator[str]:
    """The error codes in a source file: of exception classes, of `VerbFailed`, `CommandError` and of refusals."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            values = [
                line.value
                for line in node.body
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code"
            ]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            place = {"VerbFailed": 0, "_refuse": 2}.get(name)
            values = [keyword.value for keyword in node.keywords if name == "CommandError" and keyword.arg == "code"]
            values += node.args[place : place + 1] if place is not None else []
        else:
            continue
        yield from (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))


def test_the_document_explains_every_error_code() -> None:
    sources = [path for folder in ("agent", "runners") for path in (PROJECT / folder).rglob("*.py")]
    used = {code for path in sources for code in codes(path)}
    assert {"busy", "interrupted", "not_on_gpu", "unknown_subject"} <= used
    assert used <= set(NAME.findall(section("The life of a command")))
