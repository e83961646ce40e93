"""The configuration: one TOML file plus `EDGE_AGENT_*`; every value knows where it is from.

A setting `key` of section `[mqtt.tls]` is `EDGE_AGENT_MQTT_TLS_KEY` in the environment, which wins over the file.
"""

from __future__ import annotations

import difflib
import os
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.durable import write_durably
from agent.toml_text import ConfigDamaged, ConfigError, line_of, parse, read_file
from agent.topics import TopicError, Topics

__all__ = ["Config", "ConfigDamaged", "ConfigError", "describe", "load", "load_or_last_good"]

DEFAULT_PATH = "/etc/edge-agent/edge-agent.toml"
PREFIX = "EDGE_AGENT_"
DEFAULT_SOURCE = "default"


class AgentSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[agent]`: who and where.

    Attributes:
        device_id: the device's name in all topics; "" derives it from the serial number.
        state_dir: database, last report, lock.
        models_dir: the only folder from which commands may run models.
        log_level: "debug", "info", "warning" or "error".
    """

    device_id: str = ""
    state_dir: str = "/var/lib/edge-agent"
    models_dir: str = "/var/lib/edge-agent/models"
    log_level: typing.Literal["debug", "info", "warning", "error"] = "info"


class TlsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mqtt.tls]`: files in PEM form.

    Attributes:
        enabled: TLS even without any file below: the system's authorities then vouch for the broker.
        ca: authorities that vouch for the broker.
        cert: this device's certificate.
        key: its private key.
    """

    enabled: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def wanted(self) -> bool:
        """Whether the connection is to be encrypted."""
        return self.enabled or bool(self.ca or self.cert)


class MqttSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mqtt]`: the broker.

    Attributes:
        host: name or address; "" keeps the agent deliberately offline.
        port: 0 takes 8883 with TLS, else 1883.
        password_file: a file whose first line is the password; never the password itself.
        keepalive_s: seconds, 5-3600.
        topic_prefix: what stands before the device's name.
        protocol: "5", "3.1.1", or "auto": 5, and 3.1.1 with a broker that knows no better.
        reconnect_max_s: longest pause between two attempts, seconds.
        connect_timeout_s: longest wait for a connection to stand, seconds.
    """

    host: str = ""
    port: typing.Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    username: str = ""
    password_file: str = ""
    keepalive_s: typing.Annotated[int, msgspec.Meta(ge=5, le=3600)] = 30
    topic_prefix: str = "edge/v1"
    protocol: typing.Literal["auto", "5", "3.1.1"] = "auto"
    reconnect_max_s: typing.Annotated[float, msgspec.Meta(gt=0, le=3600)] = 30.0
    connect_timeout_s: typing.Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
    tls: TlsSection = TlsSection()

    @property
    def port_in_force(self) -> int:
        """The port, with the default filled in."""
        return self.port or (8883 if self.tls.wanted else 1883)


class CommandsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[commands]`: what a control plane may do.

    Attributes:
        allowed: verbs; others are rejected.
        queue_limit: commands of one verb that may wait; more are rejected as `busy`.
        payload_limit_bytes: longest command.
        probe_deadline_s: seconds a survey may take; likewise for the other verbs.
    """

    allowed: tuple[str, ...] = ("probe", "plan", "run", "cancel")
    queue_limit: typing.Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 16
    payload_limit_bytes: typing.Annotated[int, msgspec.Meta(ge=1024)] = 1 << 20
    probe_deadline_s: typing.Annotated[float, msgspec.Meta(gt=0)] = 300.0
    plan_deadline_s: typing.Annotated[float, msgspec.Meta(gt=0)] = 120.0
    run_deadline_s: typing.Annotated[float, msgspec.Meta(gt=0)] = 3600.0
    cancel_deadline_s: typing.Annotated[float, msgspec.Meta(gt=0)] = 30.0


class StoreSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`: how much is kept for a broker that is away.

    Attributes:
        outbox_limit_bytes: bytes of messages; the least important and oldest are dropped first, and counted.
        outbox_age_s: seconds after which a message is dropped, by a clock that never jumps.
    """

    outbox_limit_bytes: typing.Annotated[int, msgspec.Meta(ge=65536)] = 16 << 20
    outbox_age_s: typing.Annotated[float, msgspec.Meta(gt=0)] = 7 * 86400.0


class RoutesSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[routes]`: `allow_software_devices` lets llvmpipe, PoCL and the like stand in for a GPU (for tests)."""

    allow_software_devices: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. `sources` tells for each dotted key where its value is from.

    Attributes:
        notes: what a person should know about this configuration, e.g. that a last good copy was taken.
    """

    agent: AgentSection = AgentSection()
    mqtt: MqttSection = MqttSection()
    commands: CommandsSection = CommandsSection()
    store: StoreSection = StoreSection()
    routes: RoutesSection = RoutesSection()
    path: str = ""
    sources: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


SECTIONS: Mapping[str, type[msgspec.Struct]] = {
    "agent": AgentSection,
    "mqtt": MqttSection,
    "mqtt.tls": TlsSection,
    "commands": CommandsSection,
    "store": StoreSection,
    "routes": RoutesSection,
}


def load(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration in force.

    Args:
        path: the TOML file; None takes `EDGE_AGENT_CONFIG`, or else `DEFAULT_PATH`, which may be missing.
        environ: the environment; None takes the process's own.

    Raises:
        ConfigDamaged: the file is empty, has NUL bytes or ends in the middle.
        ConfigError: the file is missing, or a key or value is wrong; the message names it.
    """
    environ = os.environ if environ is None else environ
    named = str(path or environ.get(f"{PREFIX}CONFIG", ""))
    text = read_file(named or DEFAULT_PATH, required=bool(named))
    values = parse(text, named or DEFAULT_PATH) if text is not None else {}
    sources = dict.fromkeys(all_keys(), DEFAULT_SOURCE)
    for key, line in check_keys(values, text or "", named or DEFAULT_PATH).items():
        sources[key] = f"{named or DEFAULT_PATH}:{line}"
    for key, variable, value in environment_values(environ):
        put(values, key, value)
        sources[key] = variable
    config = convert(values, sources)
    check_meaning(config)
    return msgspec.structs.replace(config, path=named or DEFAULT_PATH, sources=sources)


def load_or_last_good(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Like `load`, but with the last good copy in place of a damaged file; the notes then say so.

    A daemon calls this: a power cut that left a file of NUL bytes must not take the device off the air.

    Raises:
        ConfigError: also when there is no last good copy.
    """
    environ = os.environ if environ is None else environ
    try:
        return load(path, environ)
    except ConfigDamaged as error:
        state_dir = environ.get(f"{PREFIX}AGENT_STATE_DIR") or AgentSection().state_dir
        copy = last_good_path(state_dir)
        if not copy.exists():
            raise
        config = load(copy, environ)
        note = f"{error}; the last good copy {copy} is in force"
        named = str(path or environ.get(f"{PREFIX}CONFIG") or DEFAULT_PATH)
        return msgspec.structs.replace(config, notes=(note,), path=named)


def last_good_path(state_dir: str) -> Path:
    """Where a daemon keeps the copy of the last file it started with."""
    return Path(state_dir) / "edge-agent.toml.last-good"


def keep_last_good(config: Config) -> None:
    """Copy the file of a configuration that works: whole or not at all, and lasting.

    Raises:
        OSError: the copy could not be written; an old one is then untouched.
    """
    source = Path(config.path)
    target = last_good_path(config.agent.state_dir)
    if config.notes or not source.exists() or source == target:
        return
    write_durably(target, source.read_bytes())


def all_keys() -> Iterator[str]:
    """Every setting as a dotted key, in the order of the structs."""
    for section, struct in SECTIONS.items():
        for field in struct.__struct_fields__:
            if f"{section}.{field}" not in SECTIONS:
                yield f"{section}.{field}"


def check_keys(values: Mapping[str, Any], text: str, path: str) -> dict[str, int]:
    """The dotted keys of a file with their lines.

    Raises:
        ConfigError: a key that nothing knows, with its line and the nearest right one.
    """
    known, found = list(all_keys()), {}
    for key in flatten(values):
        line = line_of(key, text)
        if key not in known:
            near = nearest(key, [*known, *SECTIONS])
            where = f"{path}:{line}: " if line else f"{path}: "
            raise ConfigError(f"{where}unknown key {key!r}" + (f"; did you mean {near!r}?" if near else ""))
        found[key] = line
    return found


def nearest(key: str, known: list[str]) -> str:
    """The known key most like this one: its last part counts first, then the whole; "" when none is near."""
    section, _, last = key.rpartition(".")
    siblings = [k for k in known if k.rpartition(".")[0] == section]
    close = difflib.get_close_matches(last, [k.rpartition(".")[2] for k in siblings], 1, 0.6)
    if close:
        return f"{section}.{close[0]}".lstrip(".")
    return (difflib.get_close_matches(key, known, 1, 0.5) or [""])[0]


def flatten(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The dotted keys of nested tables; a table that should be a value, or the reverse, counts as a key."""
    known = set(all_keys())
    for name, value in values.items():
        key = f"{before}{name}"
        if isinstance(value, dict) and (key in SECTIONS or (value and key not in known)):
            yield from flatten(value, key + ".")
        else:
            yield key


def environment_values(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Dotted key, variable and value of each setting in the environment.

    Raises:
        ConfigError: a variable that starts like a section but names no setting.
    """
    variables = {PREFIX + key.upper().replace(".", "_"): key for key in all_keys()}
    starts = tuple(f"{PREFIX}{section.upper()}_" for section in SECTIONS if "." not in section)
    for variable in sorted(environ):
        if variable in variables:
            key = variables[variable]
            yield key, variable, environment_value(key, environ[variable])
        elif variable.startswith(starts):
            near = (difflib.get_close_matches(variable, variables, 1, 0.6) or [""])[0]
            raise ConfigError(f"{variable}: no such setting" + (f"; did you mean {near}?" if near else ""))


def environment_value(key: str, text: str) -> Any:
    """A variable's text in the form of the setting's type: lists are separated by commas."""
    kind = type(getattr(default_section(key), key.rpartition(".")[2]))
    if kind is tuple:
        return [item.strip() for item in text.split(",") if item.strip()]
    if kind is bool:
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            text.strip().lower(), text
        )
    try:
        return kind(text)
    except ValueError:
        return text  # the conversion below names the type that was expected


def default_section(key: str) -> msgspec.Struct:
    """A section with its defaults."""
    return SECTIONS[key.rpartition(".")[0]]()


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested tables."""
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def convert(values: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    """Nested values as a `Config`.

    Raises:
        ConfigError: a value of the wrong type or out of bounds, with its key and place.
    """
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        key = re.sub(r"\[.*\]", "", place.rstrip("`"))
        raise ConfigError(f"{sources.get(key, 'configuration')}: {key}: {reason}") from None


def check_meaning(config: Config) -> None:
    """Refuse what has the right type and still can't work.

    Raises:
        ConfigError: with the key.
    """
    try:
        Topics(prefix=config.mqtt.topic_prefix, device_id=config.agent.device_id or "unset")
    except TopicError as error:
        raise ConfigError(f"agent.device_id, mqtt.topic_prefix: {error}") from None
    if bool(config.mqtt.tls.cert) != bool(config.mqtt.tls.key):
        raise ConfigError("mqtt.tls.cert and mqtt.tls.key: one without the other can't be used")


def describe(config: Config) -> list[tuple[str, Any, str]]:
    """Every setting as (dotted key, value, where it is from), fit to be shown: passwords are only in files."""
    rows = []
    for key in all_keys():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name)
        rows.append((key, list(value) if isinstance(value, tuple) else value, config.sources.get(key, DEFAULT_SOURCE)))
    return rows
