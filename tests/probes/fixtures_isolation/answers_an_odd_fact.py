"""Puts a value into the facts that is no JSON."""

from __future__ import annotations

from probes.contract import Finding, Status

LAYER = 2


def check(host):
    return Finding(subject="answers_an_odd_fact", layer=LAYER, status=Status.WORKS, facts={"odd": object()})
