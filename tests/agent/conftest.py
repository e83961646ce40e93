from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import MOSQUITTO, Agent, Mosquitto, Plane


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if not os.path.exists(MOSQUITTO):
        pytest.skip("mosquitto is not installed: nothing was tried with a real broker")
    (tmp_path / "broker").mkdir()
    broker = Mosquitto(tmp_path / "broker").start()
    yield broker
    broker.kill()


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(port: int, **settings: Any) -> Agent:
        made.append(Agent(tmp_path / "device", port, **settings))
        return made[-1]

    yield make
    for agent in made:
        agent.kill()


@pytest.fixture
def agent(mosquitto: Mosquitto, make_agent: Callable[..., Agent]) -> Agent:
    return make_agent(mosquitto.port).start()


@pytest.fixture
def plane(mosquitto: Mosquitto) -> Iterator[Plane]:
    plane = Plane(mosquitto.port)
    yield plane
    plane.close()


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"
