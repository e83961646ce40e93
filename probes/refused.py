"""Checks that are never tried on some devices, from a table: `probes/refused_checks.toml`. A newcomer adds a row."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from probes import devicetree, l4t
from probes.host import Host

TABLE = Path(__file__).parent / "refused_checks.toml"


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: what is not tried, where, and why. A row holds when any of its conditions does.

    Attributes:
        check: "<probe>" or "<probe>/<part>".
        boards: board numbers of the device tree: "p3767-0005".
        socs: "tegra234".
        any_jetson: every Jetson, also one whose SoC is not known.
        capabilities: compute capabilities of the GPU: "9.0".
        source: where the knowledge is from.
    """

    check: str
    boards: tuple[str, ...] = ()
    socs: tuple[str, ...] = ()
    any_jetson: bool = False
    capabilities: tuple[str, ...] = ()
    reason: str
    remedy: str
    source: str

    @property
    def text(self) -> str:
        """What the probe says."""
        return f"refused: {self.reason} ({self.source})"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    refused: tuple[Refusal, ...]


@functools.cache
def read_table() -> tuple[Refusal, ...]:
    """The bundled table; read when the first probe asks."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=_Table).refused


def find(host: Host, check: str, capability: str | None = None) -> Refusal | None:
    """The row that forbids `check` on this device; None when it may be tried.

    Args:
        host: the machine; its device tree is read.
        check: as in the table.
        capability: the GPU's compute capability, when it is known.
    """
    tree = devicetree.read_device_tree(host)
    tokens = (*tree.compatible, *tree.board_ids)
    for row in read_table():
        if row.check != check:
            continue
        named = any(devicetree.names_board(token, board) for token in tokens for board in row.boards)
        if named or tree.soc in row.socs or capability in row.capabilities:
            return row
        if row.any_jetson and l4t.is_jetson(host):
            return row
    return None
