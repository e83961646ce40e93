"""Brings in paho-mqtt without the parts of the standard library that it loads and this agent never uses.

Measured with paho-mqtt 2.2.0 on Python 3.11: 16 MB PSS instead of 23 MB for a process with msgspec, sqlite3 and paho.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

from agent.config import MqttSection

SESSION_EXPIRY_S = 7 * 86400  # how long the broker keeps commands for a device that is away
NEEDED = "paho-mqtt >= 2.0, < 3"


class PahoUnsuitable(Exception):
    """paho-mqtt is missing or is of another major version; the message is one sentence with the remedy."""


def import_paho(tls: bool) -> Any:
    """The module `paho.mqtt.client`.

    Args:
        tls: whether connections will be encrypted; without it neither `ssl` nor OpenSSL's hashes are loaded.

    Raises:
        PahoUnsuitable: no usable paho-mqtt is installed.
    """
    absent: dict[str, Any] = {}
    if "urllib.request" not in sys.modules and importlib.util.find_spec("socks") is None:
        # Only asked for proxies, and only where PySocks is installed (paho.mqtt.client._get_proxy, 2.0-2.2).
        absent["urllib.request"] = types.ModuleType("urllib.request")
    if not tls:
        # hashlib goes on without OpenSSL, with Python's own implementations; paho only names two exceptions of ssl.
        if "_hashlib" not in sys.modules:
            absent["_hashlib"] = None
        if "ssl" not in sys.modules:
            absent["ssl"] = no_ssl()
    sys.modules.update(absent)
    try:
        import paho.mqtt.client as client
    except ImportError as error:
        raise PahoUnsuitable(f"paho-mqtt can't be imported ({error}); install {NEEDED}") from error
    finally:
        for name in absent:
            sys.modules.pop(name, None)
    if not hasattr(client, "CallbackAPIVersion"):
        import paho.mqtt

        raise PahoUnsuitable(
            f"paho-mqtt {getattr(paho.mqtt, '__version__', '1.x')} is installed; this agent needs {NEEDED}: "
            "pip install 'paho-mqtt>=2,<3'"
        )
    return client


def no_ssl() -> types.ModuleType:
    """What paho needs of `ssl` on a connection that is not encrypted."""
    module: Any = types.ModuleType("ssl")
    module.SSLWantReadError = type("SSLWantReadError", (OSError,), {})
    module.SSLWantWriteError = type("SSLWantWriteError", (OSError,), {})
    return module  # type: ignore[no-any-return]


def make_client(paho: Any, settings: MqttSection, protocol: str, client_id: str) -> Any:
    """A client that is not connected, with credentials and encryption, without callbacks and will.

    Args:
        paho: the module, from `import_paho`.
        settings: credentials.
        protocol: "5" or "3.1.1".
        client_id: the broker keeps commands for this name.

    Raises:
        OSError: a file of the settings can't be read.
    """
    five = protocol == "5"
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=paho.MQTTv5 if five else paho.MQTTv311,
        clean_session=None if five else False,
    )
    client.connect_timeout = settings.connect_timeout_s
    client.manual_ack_set(True)
    client.suppress_exceptions = True  # ours are caught and told in `agent.mqtt`; none may end the thread
    client.max_inflight_messages_set(0)  # the window is kept in `agent.mqtt`
    if settings.username:
        client.username_pw_set(settings.username, read_password(settings.password_file))
    if settings.tls.wanted:
        for path in filter(None, (settings.tls.ca, settings.tls.cert, settings.tls.key)):
            open(path, "rb").close()  # ssl's own error does not name the file
        client.tls_set(settings.tls.ca or None, settings.tls.cert or None, settings.tls.key or None)
    return client


def connect_arguments(protocol: str) -> dict[str, Any]:
    """What `connect` takes beside host, port and keepalive: a session that outlives the connection."""
    if protocol != "5":
        return {}
    properties = make_properties("CONNECT")
    properties.SessionExpiryInterval = SESSION_EXPIRY_S
    return {"clean_start": False, "properties": properties}


def make_properties(packet: str) -> Any:
    """Empty MQTT 5 properties for a packet of this type ("CONNECT", "PUBLISH")."""
    packettypes: Any = importlib.import_module("paho.mqtt.packettypes")
    properties: Any = importlib.import_module("paho.mqtt.properties")
    return properties.Properties(getattr(packettypes.PacketTypes, packet))


def read_password(path: str) -> str | None:
    """The first line of the file, read anew for each connection so that it can be changed; None without a file.

    Raises:
        OSError: the file can't be read.
    """
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        return file.readline().rstrip("\r\n")
