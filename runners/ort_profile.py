"""Where ONNX Runtime ran each node, read from its own records. Pure: text or pairs in, a `Placement` out.

Two records count as proof: the profile of a run (any release), and the node assignment kept at load (1.27 and newer).
`get_available_providers()` (a compile-time list) and `get_providers()` (what was registered) do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from probes.contract import DeviceKind
from runners.contract import Placement, PlacementPart

PROFILE_SOURCE = "ONNX Runtime profile: the provider of each executed node"
ASSIGNMENT_SOURCE = "ONNX Runtime node assignment recorded at load"

# A provider that drives either kind of device (WebGPU, DirectML, OpenVINO) is left out: its name proves nothing.
KINDS = {
    "CPUExecutionProvider": DeviceKind.CPU,
    "XnnpackExecutionProvider": DeviceKind.CPU,
    "DnnlExecutionProvider": DeviceKind.CPU,
    "ACLExecutionProvider": DeviceKind.CPU,
    "CUDAExecutionProvider": DeviceKind.GPU,
    "TensorrtExecutionProvider": DeviceKind.GPU,
    "NvTensorRTRTXExecutionProvider": DeviceKind.GPU,
    "MIGraphXExecutionProvider": DeviceKind.GPU,
    "QNNExecutionProvider": DeviceKind.NPU,
}


class _Arguments(msgspec.Struct, frozen=True):
    provider: str = ""
    op_name: str = ""
    node_index: str = ""


class _Event(msgspec.Struct, frozen=True):
    cat: str = ""
    name: str = ""
    args: _Arguments = _Arguments()


def placement_from_profile(text: str | bytes) -> Placement:
    """The placement that a profile proves; a node that ran many times counts once.

    Args:
        text: the file that `end_profiling()` names: a JSON list of trace events. Executed nodes are those with
            category "Node" and a provider.

    Returns: without parts when no node was executed.

    Raises:
        ValueError: the text is not such a list, e.g. cut short.
    """
    events = msgspec.json.decode(text, type=list[_Event])
    nodes = {
        (e.args.provider, e.name, e.args.op_name, e.args.node_index)
        for e in events
        if e.cat == "Node" and e.args.provider
    }
    return _placement(Counter(provider for provider, *_ in nodes), PROFILE_SOURCE)


def placement_from_assignment(assigned: Iterable[tuple[str, int]]) -> Placement:
    """The placement that the record of the load time proves.

    Args:
        assigned: (provider, number of nodes) of each piece of the graph, in any order.
    """
    nodes: Counter[str] = Counter()
    for provider, count in assigned:
        nodes[provider] += count
    return _placement(nodes, ASSIGNMENT_SOURCE)


def _placement(nodes: Counter[str], source: str) -> Placement:
    parts = tuple(
        PlacementPart(device=provider, device_kind=KINDS.get(provider, DeviceKind.UNKNOWN), nodes=count)
        for provider, count in nodes.most_common()
        if count
    )
    return Placement(parts=parts, source=source if parts else f"{source}: it names no node")
