"""The house rules that a machine can check: direction of imports, light start-up, documents that agree with code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
ALLOWED = {"probes": {"probes"}, "runners": {"runners", "probes"}, "agent": {"agent", "runners", "probes"}}
HEAVY = ("numpy", "rich", "click", "llama_cpp", "onnxruntime", "vulkan", "pyopencl", "wgpu", "PIL", "psutil", "asyncio")
SOURCES = [path for folder in ALLOWED for path in sorted((PROJECT / folder).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_imports_run_from_agent_to_runners_to_probes_only(path: Path) -> None:
    folder = path.relative_to(PROJECT).parts[0]
    ours = {name.partition(".")[0] for name in imported(path)} & set(ALLOWED)
    assert ours <= ALLOWED[folder]


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py"], ids=str)
def test_a_package_file_holds_a_docstring_and_nothing_else(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assert len(body) == 1
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_the_daemon_imports_nothing_heavy() -> None:
    assert not loaded_by("import agent.daemon") & set(HEAVY)


def test_the_command_line_starts_with_click_alone() -> None:
    assert not loaded_by("import agent.cli") & (set(HEAVY) - {"click"} | {"paho", "msgspec", "sqlite3"})


def test_every_make_target_and_command_that_the_readme_names_exists() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`?make ([a-z]+)", readme)) <= set(targets)
    from agent.cli import cli

    commands = set(re.findall(r"edge-agent ([a-z]+)", readme)) - {"is", "on", "in"}
    assert commands
    assert commands <= set(cli.commands)


def test_the_text_speaks_of_no_machine_of_ours() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout: the list of files is not known")
    wrong = re.compile(rb"(?<![\w.])/work/|pypi\.org|files\.pythonhosted|deb\.debian\.org|registry\.npmjs")
    hits = [
        name for name in tracked if name != "tests/test_structure.py" and wrong.search((PROJECT / name).read_bytes())
    ]
    assert not hits
