"""Which road a model takes on a device, and why every other road is refused. Pure: data in, data out."""

from __future__ import annotations

import msgspec

from probes.contract import DeviceKind


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes needed against bytes available.

    Attributes:
        needed_bytes: the sum of `terms`.
        available_bytes: None when the report does not say.
        terms: what it is made of, e.g. {"weights": ..., "kv_cache": ..., "compute": ...}.
        fits: None when it can't be told.
    """

    needed_bytes: int
    available_bytes: int | None
    terms: dict[str, int]
    fits: bool | None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One road: model -> runtime -> backend -> API -> device; accepted, or refused with a reason.

    Attributes:
        api: the compute API below the backend; "" for the CPU.
        rests_on: subjects of the findings it rests on.
    """

    runtime: str
    backend: str
    accepted: bool
    api: str = ""
    device: str = ""
    device_index: int = 0
    device_kind: DeviceKind = DeviceKind.UNKNOWN
    context_tokens: int | None = None
    fit: Fit | None = None
    reason: str = ""
    remedy: str = ""
    rests_on: tuple[str, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All roads for one model on one device: accepted ones in order of preference, then refused ones."""

    model: str
    accepted: tuple[Route, ...] = ()
    refused: tuple[Route, ...] = ()

    @property
    def best(self) -> Route | None:
        """The road to take, or None when there is none."""
        return self.accepted[0] if self.accepted else None
