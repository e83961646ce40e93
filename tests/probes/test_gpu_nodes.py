"""GPU nodes: which of them mean what, and that no other file of the probes knows their names."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

import pytest

from probes import clocks, gpu_nodes, ground
from tests.recorded import build_files

PROJECT = Path(__file__).parents[2]
HOMES = ("gpu_nodes.py", "clocks.py", "ground_table.py")  # of names, of load files, of wider patterns
SOURCES = [
    path
    for folder in ("probes", "runners", "agent")
    for path in sorted((PROJECT / folder).rglob("*.py"))
    if path.name not in HOMES
]
GROUND = ground.FILES["nodes"]


@pytest.mark.parametrize("node", ["nvidia0", "nvmap", "nvgpu/igpu0/ctrl", "dri/renderD128", "kfd", "dxg"])
def test_one_node_is_enough_for_a_gpu_to_be_there(node: str, tmp_path: Path) -> None:
    assert not gpu_nodes.there(build_files(tmp_path, {}))
    assert gpu_nodes.there(build_files(tmp_path, {f"/dev/{node}": ""}))


@pytest.mark.parametrize("node", ["dri/card0", "nvidiactl", "host1x-fence", "null"])
def test_other_nodes_are_none_of_a_gpu(node: str, tmp_path: Path) -> None:
    assert not gpu_nodes.there(build_files(tmp_path, {f"/dev/{node}": ""}))
    assert not gpu_nodes.is_held(f"/dev/{node}")


@pytest.mark.parametrize(
    "node", ["nvidia0", "nvidia-uvm", "nvmap", "nvgpu/igpu0/channel", "nvhost-as-gpu", "dri/renderD128", "kfd", "dxg"]
)
def test_who_has_these_open_uses_a_gpu(node: str) -> None:
    assert gpu_nodes.is_held(f"/dev/{node}")


def test_a_changed_right_of_any_node_makes_findings_stale() -> None:
    assert all(any(fnmatch.fnmatchcase(node, wide) for wide in GROUND) for node in gpu_nodes.ALL)


def test_the_load_is_the_gpus_and_not_another_engines(tmp_path: Path) -> None:
    files = {
        "/sys/class/devfreq/17000000.gpu/device/of_node/name": "ga10b\0",
        "/sys/class/devfreq/17000000.gpu/device/load": "120\n",
        "/sys/class/devfreq/15340000.vic/device/of_node/name": "vic\0",
        "/sys/class/devfreq/15340000.vic/device/load": "900\n",
    }
    host = build_files(tmp_path, files)
    assert clocks.load_files(host) == ["/sys/class/devfreq/17000000.gpu/device/load"]
    gpu = clocks.read_gpu(host)
    assert gpu is not None
    assert gpu.load_percent == 12


def texts(path: Path) -> set[str]:
    """Every text in the code of a file that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented]
    return {node.value for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_names_of_gpu_nodes_and_load_files_have_one_home(path: Path) -> None:
    wanted = (*gpu_nodes.ALL, *gpu_nodes.NVGPU, gpu_nodes.IGPU, *clocks.LOADS)
    found = [text for text in texts(path) if any(node in text or fnmatch.fnmatchcase(text, node) for node in wanted)]
    assert found == []
