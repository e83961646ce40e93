"""A line of tegrastats, in every format that was seen: the cases of the field, recorded devices, and no line at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.tegrastats import Engine, Line, parse_line
from tests.recorded import FIXTURES, device_names, read_device

NANO = [parse_line(line) for line in (FIXTURES / "cases/DT-06/lines.txt").read_text().splitlines()]
JETPACK_7 = [parse_line(line) for line in (FIXTURES / "cases/DT-09/lines.txt").read_text().splitlines()]


def test_a_nano_says_memory_cores_gpu_temperatures_and_rails_without_units() -> None:
    line = NANO[0]
    assert line.ram_mb == (1446, 3957)
    assert line.gpu == Engine(percent=0, mhz=(76,))
    assert line.cpus == ((17, 1428), (11, 1428), (21, 1428), (12, 1428))
    assert (line.temperatures_c["CPU"], line.temperatures_c["GPU"], line.temperatures_c["PMIC"]) == (24.5, 21, 100)
    assert line.rails_mw == {"POM_5V_IN": (2830, 1483), "POM_5V_GPU": (41, 31), "POM_5V_CPU": (943, 206)}
    assert line.unknown == ""


def test_a_busy_decoder_adds_a_token_and_changes_nothing_else() -> None:
    assert NANO[1].gpu == Engine(percent=51, mhz=(307,))
    assert NANO[1].engines["NVDEC"] == Engine(mhz=(192,))
    assert NANO[1].rails_mw["POM_5V_IN"] == (3353, 1616)
    assert set(NANO[1].engines) - set(NANO[0].engines) == {"NVDEC"}
    assert NANO[1].temperatures_c.keys() == NANO[0].temperatures_c.keys()


def test_encoder_decoder_and_cores_that_are_off() -> None:
    assert NANO[2].engines["NVENC"].mhz == (268,)
    assert NANO[2].engines["NVDEC"].mhz == (192,)
    assert NANO[2].cpus[1:3] == (None, None)


def test_an_orin_on_jetpack_7_prints_pairs_and_triplets() -> None:
    line = JETPACK_7[0]
    assert line.gpu == Engine(percent=12, mhz=(1300, 1300))
    assert (line.temperatures_c["cpu"], line.temperatures_c["gpu"]) == (52.968, 47.625)
    assert line.rails_mw["VDD_GPU_SOC"] == (5139, 5139)
    assert line.engines["NVENC0"].off
    assert line.stamp == "07-25-2026 09:08:28"


def test_a_thor_does_not_say_how_busy_its_gpu_is_and_that_is_not_zero() -> None:
    assert JETPACK_7[1].gpu == Engine(percent=None, mhz=(1000, 1000, 1000))
    assert JETPACK_7[2].gpu == Engine(percent=None, mhz=())
    assert JETPACK_7[2].temperatures_c["gpu"] == 62.906
    assert JETPACK_7[2].rails_mw["VDD_GPU"] == (4400, 4300)
    assert JETPACK_7[3].rails_mw == {"VDD_GPU": (4400, 4300), "VIN": (38100, 37900)}


def recorded_lines() -> list[tuple[str, str]]:
    return [
        (f"{name}: {command}", entry["content"])
        for name in device_names()
        for command, entry in read_device(name)["commands"].items()
        if "tegrastats" in command
    ]


@pytest.mark.parametrize(("name", "text"), recorded_lines(), ids=lambda value: value[:40])
def test_every_recorded_line_is_read_to_its_last_word(name: str, text: str) -> None:
    line = parse_line(text)
    assert line.unknown == "", name
    assert "GR3D" in line.engines


def test_a_block_that_is_off_has_no_temperature_and_new_words_are_kept() -> None:
    line = parse_line(
        "RAM 1/2MB (lfb 1x4MB) cv0@-256C NEW_THING=[7] gpu@40C GR3D_FREQ 0%@305 GR3D2_FREQ 0%@0 NVENC 79%@166"
    )
    assert line.temperatures_c == {"cv0": None, "gpu": 40.0}
    assert line.unknown == "NEW_THING=[7]"
    assert line.engines["NVENC"] == Engine(percent=79, mhz=(166,))


@given(st.text())
def test_any_text_is_a_line(text: str) -> None:
    assert isinstance(parse_line(text), Line)


@given(st.permutations((FIXTURES / "cases/DT-09/lines.txt").read_text().splitlines()[2].split(" ")[2:]))
def test_words_in_any_order_never_raise(words: list[str]) -> None:
    assert isinstance(parse_line(" ".join(words)), Line)
