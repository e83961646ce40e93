"""Containers: NVIDIA's runtime and CDI specifications, each file parsed; inside of one, how the GPU came in.

A CDI file counts by its `kind`: /etc/cdi/nvidia-pva.yaml is no GPU's, whatever its name and devices say. A Jetson's
runtime works by lists of files ("csv"), and `nvidia-ctk cdi generate` must be told so.

Source: CNCF container-device-interface SPEC.md; NVIDIA/nvidia-container-toolkit#1853; cases in
tests/fixtures/cases/DT-19.
"""

from __future__ import annotations

import json
import os.path
import re

import msgspec

from probes import gpu_nodes, l4t
from probes.contract import Fact, Finding, Status
from probes.host import READ_LIMIT_BYTES, Host

LAYER = 1
RESTS_ON = ("l4t", "nodes", "cdi", "container_runtime", "libcuda")
FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
GPU_KIND = "nvidia.com/gpu"
TOOLS = ("/usr/bin/nvidia-ctk", "/usr/bin/nvidia-container-runtime", "/usr/local/bin/nvidia-ctk")
CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"
LISTS = "/etc/nvidia-container-runtime/host-files-for-container.d/*.csv"
DOCKER = "/etc/docker/daemon.json"
LIBCUDA = (
    "/usr/lib/*-linux-gnu/libcuda.so.1",
    "/usr/lib/*-linux-gnu/nvidia/libcuda.so.1*",
    "/usr/lib/*-linux-gnu/tegra/libcuda.so.1*",
    "/usr/lib64/libcuda.so.1",
)
OURS = re.compile(r"(/etc|/var/run|/run)/cdi/.+\.(yaml|yml|json)$")
YAML_LIMIT = 128 << 10  # characters; a Jetson's, with all its mounts, has some 60,000
YAML_DEPTH = 32
INSTALL = "sudo apt-get install nvidia-container-toolkit (on a Jetson: nvidia-container, part of nvidia-jetpack)"
GENERATE = "sudo nvidia-ctk cdi generate{mode} --output=/etc/cdi/nvidia.yaml"
START = "start the container with --runtime nvidia, or with --device nvidia.com/gpu=all where CDI is set up"


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One CDI file.

    Attributes:
        kind: vendor and class, "nvidia.com/gpu".
        devices: names, as in nvidia.com/gpu=NAME.
        error: why it can't be used, in the parser's words.
    """

    path: str
    kind: str = ""
    devices: tuple[str, ...] = ()
    error: str = ""


def parse_spec(path: str, text: str) -> Spec:
    """Read one CDI file, JSON or YAML by its name.

    References inside of YAML (anchors) are refused: CDI has none, and a few nested ones fill any memory.
    """
    try:
        found = json.loads(text) if path.endswith(".json") else _yaml(text)
    except (ValueError, RecursionError) as error:
        return Spec(path=path, error=" ".join(str(error).split())[:300] or type(error).__name__)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        return Spec(path=path, error="it names no kind: no CDI specification")
    devices = found.get("devices")
    rows = [row for row in devices if isinstance(row, dict)] if isinstance(devices, list) else []
    names = tuple(str(row["name"]) for row in rows if isinstance(row.get("name"), (str, int)))
    wrong = "" if names else "it lists no device"
    if path.endswith(".yml"):
        wrong = "its name does not end in .yaml or .json: no container engine reads it"
    return Spec(path=path, kind=found["kind"], devices=names, error=wrong)


def _yaml(text: str) -> object:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast, where it was built
    if len(text) > YAML_LIMIT:
        raise ValueError(f"it is too large: {len(text)} characters")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has YAML references, which a CDI specification never has")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > YAML_DEPTH:
                raise ValueError("it is nested deeper than any CDI specification")
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader, either of them
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def read_specs(host: Host) -> list[Spec]:
    """Every CDI file once; /var/run is a link to /run on most systems."""
    found: dict[str, Spec] = {}
    for folder in FOLDERS:
        for path in host.glob(f"{folder}/*"):
            if OURS.match(path):
                text = host.text(path)
                error = "it can't be read" if text is None else "it is too large"
                readable = text is not None and len(text) < READ_LIMIT_BYTES
                spec = parse_spec(path, text or "") if readable else Spec(path=path, error=error)
                found.setdefault(os.path.realpath(host.path(path)), spec)
    return list(found.values())


def broken(specs: list[Spec]) -> list[str]:
    """The files that can't be used, each with the reason."""
    return [f"{spec.path}: {spec.error}" for spec in specs if spec.error]


def read_runtime(host: Host) -> dict[str, Fact]:
    """What of NVIDIA's container runtime is installed, and what Docker knows of it."""
    mode = re.search(r'^[ \t]*mode[ \t]*=[ \t]*"([^"\n]{1,32})"', host.text(CONFIGURATION) or "", re.M)
    try:
        docker = json.loads(host.text(DOCKER) or "{}")
    except (ValueError, RecursionError):
        docker = None
    runtimes = docker.get("runtimes") if isinstance(docker, dict) else None
    default = docker.get("default-runtime") if isinstance(docker, dict) else None
    return {
        "toolkit": [path for path in TOOLS if host.exists(path)],
        "runtime_mode": mode[1] if mode else None,
        "csv_lists": [path.rpartition("/")[2] for path in host.glob(LISTS)],
        "docker_has_nvidia": "nvidia" in runtimes if isinstance(runtimes, dict) else None if docker is None else False,
        "docker_default_runtime": default if isinstance(default, str) else None,
    }


def placeholders(host: Host) -> list[str]:
    """Empty files that stand where libcuda should be: images have them, and the runtime lays the real ones above."""
    paths = {path for pattern in LIBCUDA for path in host.glob(pattern)}
    return sorted(path for path in paths if host.text(path) == "")


def check(host: Host) -> Finding:
    """Read runtime and CDI files; inside of a container also whether the GPU's libraries came in.

    Returns: WORKS when a GPU can be handed to a container by what the files say (no container is started), or, inside
        of one, when its libraries are there; BROKEN when something of it is there and can't serve; ABSENT without any.
    """
    specs, facts = read_specs(host), read_runtime(host)
    gpu = [spec for spec in specs if spec.kind == GPU_KIND and not spec.error]
    facts |= {
        "gpu_cdi": bool(gpu),
        "gpu_cdi_devices": [name for spec in gpu for name in spec.devices],
        "cdi_kinds": sorted({spec.kind for spec in specs if spec.kind}),
        "cdi_broken": [*broken(specs)],
        "in_container": host.in_container(),
    }
    status, reason, remedy = _inside(host) if host.in_container() else _outside(host, specs, facts)
    return Finding(subject="container", layer=LAYER, status=status, reason=reason, remedy=remedy, facts=facts)


def _outside(host: Host, specs: list[Spec], facts: dict[str, Fact]) -> tuple[Status, str, str]:
    generate = GENERATE.format(mode=" --mode=csv" if l4t.is_jetson(host) else "")
    if bad := broken(specs):
        return Status.BROKEN, f"a CDI file can't be used: {'; '.join(bad)}", f"write it anew: {generate}"
    if facts["gpu_cdi"]:
        return Status.WORKS, "", ""
    others = f"; the CDI files here are of {', '.join(sorted({s.kind for s in specs}))}" if specs else ""
    if facts["csv_lists"] or facts["docker_has_nvidia"]:
        return Status.WORKS, f"no CDI for the GPU: --runtime nvidia is the way here{others}", generate
    if facts["toolkit"] or specs:
        return Status.BROKEN, f"no CDI for the GPU, and Docker does not know the runtime nvidia{others}", generate
    return Status.ABSENT, "NVIDIA's container runtime is not installed, and there is no CDI file", INSTALL


def _inside(host: Host) -> tuple[Status, str, str]:
    if not l4t.is_jetson(host) and not host.exists(gpu_nodes.CARD_CONTROL):
        return Status.ABSENT, "inside of a container without a GPU", ""
    empty = placeholders(host)
    if empty:
        return Status.BROKEN, f"{', '.join(empty)} is an empty placeholder: the runtime did not fill it", START
    if not any(host.glob(pattern) for pattern in LIBCUDA) and host.executes:
        return Status.BROKEN, "inside of a container on a machine with a GPU, but no libcuda came in", START
    return Status.WORKS, "", ""
