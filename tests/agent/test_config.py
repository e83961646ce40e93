from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import (
    Config,
    ConfigDamaged,
    ConfigError,
    describe,
    keep_last_good,
    last_good_path,
    load,
    load_or_last_good,
)

GOOD = (
    '[agent]\ndevice_id = "press-7"\n\n[mqtt]\nhost = "broker.lan"\nkeepalive_s = 20\n\n'
    '[mqtt.tls]\nca = "/etc/ca.pem"\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "edge-agent.toml"
    path.write_text(GOOD)
    return path


def refusal(path: Path | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    return str(caught.value)


def test_values_of_the_file_are_in_force_and_know_their_line(file: Path) -> None:
    config = load(file, {})
    assert (config.agent.device_id, config.mqtt.keepalive_s, config.mqtt.tls.ca) == ("press-7", 20, "/etc/ca.pem")
    assert config.sources["mqtt.keepalive_s"] == f"{file}:6"
    assert config.sources["mqtt.tls.ca"] == f"{file}:9"
    assert config.sources["mqtt.port"] == "default"


def test_the_environment_wins_over_the_file(file: Path) -> None:
    config = load(file, {"EDGE_AGENT_MQTT_KEEPALIVE_S": "9", "EDGE_AGENT_COMMANDS_ALLOWED": "probe, plan"})
    assert config.mqtt.keepalive_s == 9
    assert config.commands.allowed == ("probe", "plan")
    assert config.sources["mqtt.keepalive_s"] == "EDGE_AGENT_MQTT_KEEPALIVE_S"


def test_the_environment_names_the_file(file: Path) -> None:
    assert load(None, {"EDGE_AGENT_CONFIG": str(file)}).agent.device_id == "press-7"


def test_a_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.toml") == f"{tmp_path}/none.toml: no such file"


def test_without_any_file_the_agent_is_deliberately_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agent.config.DEFAULT_PATH", str(tmp_path / "none.toml"))
    assert load(None, {}).mqtt.host == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[mqtt]\nhost = "a"\nkeep_alive_s = 3\n',
            "3: unknown key 'mqtt.keep_alive_s'; did you mean 'mqtt.keepalive_s'?",
        ),
        ('[agent]\n\n[mqqt]\nhost = "a"\n', "4: unknown key 'mqqt.host'; did you mean 'mqtt.host'?"),
        ('device_id = "a"\n', "1: unknown key 'device_id'; did you mean 'agent.device_id'?"),
        ('[mqtt.tls]\ncertificate = "a"\n', "2: unknown key 'mqtt.tls.certificate'; did you mean 'mqtt.tls.cert'?"),
        ('mqtt.hots = "a"\n', "1: unknown key 'mqtt.hots'; did you mean 'mqtt.host'?"),
        ("[mqtt]\nport = 99999\n", "2: mqtt.port: Expected `int` <= 65535"),
        ('[mqtt]\nport = "1883"\n', "2: mqtt.port: Expected `int`, got `str`"),
        ('[mqtt]\nprotocol = "4"\n', "2: mqtt.protocol: Invalid enum value '4'"),
        ('[commands]\nallowed = ["probe", 3]\n', "2: commands.allowed: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert refusal(path) == f"{path}:{said}"


def test_a_section_that_should_be_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("mqtt = 3\n")
    assert "1: unknown key 'mqtt'" in refusal(path) or "mqtt: Expected `object`" in refusal(path)


def test_a_wrong_variable_is_an_error_and_the_nearest_is_told() -> None:
    assert refusal(None, {"EDGE_AGENT_MQTT_HSOT": "a"}) == (
        "EDGE_AGENT_MQTT_HSOT: no such setting; did you mean EDGE_AGENT_MQTT_HOST?"
    )


def test_a_variable_of_the_wrong_type_is_named() -> None:
    assert (
        refusal(None, {"EDGE_AGENT_MQTT_PORT": "many"}) == "EDGE_AGENT_MQTT_PORT: mqtt.port: Expected `int`, got `str`"
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty (0 bytes)"),
        (b"\0" * 4096, "4096 of 4096 bytes are NUL, as after a power cut"),
        (GOOD.encode() + b"\0" * 512, "512 of "),
        (GOOD.encode()[: len(GOOD) // 2], "cut off"),
    ],
)
def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigDamaged) as caught:
        load(path, {})
    assert said in str(caught.value)


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[mqtt]\nhost = broker\n")
    assert "line 2" in refusal(path)


def test_a_daemon_takes_the_last_good_copy_of_a_damaged_file_and_says_so(file: Path, tmp_path: Path) -> None:
    environ = {"EDGE_AGENT_AGENT_STATE_DIR": str(tmp_path)}
    keep_last_good(load(file, environ))
    file.write_bytes(b"\0" * 4096)
    config = load_or_last_good(file, environ)
    assert config.agent.device_id == "press-7"
    assert str(last_good_path(str(tmp_path))) in config.notes[0]


def test_without_a_copy_a_damaged_file_gives_no_silent_defaults(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"")
    with pytest.raises(ConfigDamaged):
        load_or_last_good(file, {"EDGE_AGENT_AGENT_STATE_DIR": str(tmp_path / "empty")})


def test_a_wrong_key_is_not_covered_up_by_the_last_good_copy(file: Path, tmp_path: Path) -> None:
    environ = {"EDGE_AGENT_AGENT_STATE_DIR": str(tmp_path)}
    keep_last_good(load(file, environ))
    file.write_text("[mqtt]\nhots = 'a'\n")
    with pytest.raises(ConfigError, match=r"did you mean 'mqtt\.host'"):
        load_or_last_good(file, environ)


@pytest.mark.parametrize("name", ["a/b", "a+b", "#", "a b", "$SYS", "tab\t"])
def test_a_device_id_that_cannot_stand_in_a_topic_is_refused(name: str) -> None:
    assert "device id" in refusal(None, {"EDGE_AGENT_AGENT_DEVICE_ID": name})


def test_a_certificate_without_its_key_is_refused() -> None:
    assert "mqtt.tls.cert and mqtt.tls.key" in refusal(None, {"EDGE_AGENT_MQTT_TLS_CERT": "/a.pem"})


def test_every_setting_is_described_with_its_source(file: Path) -> None:
    rows = {key: (value, source) for key, value, source in describe(load(file, {}))}
    assert rows["mqtt.host"] == ("broker.lan", f"{file}:5")
    assert rows["commands.queue_limit"] == (16, "default")
    assert len(rows) == sum(1 for _ in describe(Config()))


def test_tls_moves_the_default_port() -> None:
    assert load(None, {"EDGE_AGENT_MQTT_TLS_ENABLED": "true"}).mqtt.port_in_force == 8883
    assert load(None, {"EDGE_AGENT_MQTT_HOST": "a"}).mqtt.port_in_force == 1883
