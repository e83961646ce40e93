"""What a runner promises, and what it may raise.

RunnerError
├── ModelRejected         the file is not what it should be, or this runtime can't take it
├── RequestRejected       a loaded model can't do what is asked: prompt too long, no chat template
├── RuntimeUnavailable    the runtime, or the backend asked for, is not usable here
├── OutOfDeviceMemory     loading or running needed more memory than there is
├── DeadlineExceeded      no answer in the time allowed
├── WorkerDied            the process with the model ended by itself
└── Cancelled             somebody asked for it

A runner is a module in this folder with `NAME`, `LAYER`, `BACKENDS` and three functions: see `Runner`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from probes.contract import DeviceKind, Finding
from runners.model import ModelInfo
from runners.timing import Timing


class RunnerError(Exception):
    """Expected trouble with a model or a runtime.

    Attributes:
        reason: one sentence for a person.
        remedy: what to do, or "".
        code: stable word for programs, e.g. "model_rejected".
    """

    code = "runner_error"

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


class ModelRejected(RunnerError):
    """The file is not what it should be, or this runtime can't take it."""

    code = "model_rejected"


class RequestRejected(RunnerError):
    """A loaded model can't do what is asked: the prompt is too long, it has no chat template."""

    code = "request_rejected"


class RuntimeUnavailable(RunnerError):
    """The runtime, or the backend asked for, is not usable here."""

    code = "runtime_unavailable"


class OutOfDeviceMemory(RunnerError):
    """Loading or running needed more memory than there is."""

    code = "out_of_memory"


class DeadlineExceeded(RunnerError):
    """No answer in the time allowed."""

    code = "deadline_exceeded"


class WorkerDied(RunnerError):
    """The process with the model ended by itself: a crash, the OOM killer, somebody's kill."""

    code = "worker_died"


class Cancelled(RunnerError):
    """Somebody asked for it."""

    code = "cancelled"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a runtime takes a model at all, whatever the device: yes, or no with a reason."""

    accepted: bool
    reason: str = ""
    remedy: str = ""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime's plug into a compute API.

    Attributes:
        name: "cpu", "cuda", "tensorrt", "vulkan".
        api: the probe whose finding it rests on ("cuda", "vulkan"); "" for the CPU.
        kind: the kind of device that it promises.
    """

    name: str
    api: str = ""
    kind: DeviceKind = DeviceKind.GPU


class PlacementPart(msgspec.Struct, frozen=True, kw_only=True):
    """One device's share of a loaded model.

    Attributes:
        device: name as the runtime gives it ("CPU", "CUDA0", "CUDAExecutionProvider").
        layers: blocks (LLM) on this device; None where the runtime does not count in blocks.
        nodes: graph nodes (tensor models) on this device; None likewise.
        bytes: weights and buffers there; None when the runtime does not say.
    """

    device: str
    device_kind: DeviceKind
    layers: int | None = None
    nodes: int | None = None
    bytes: int | None = None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where each part of a model really ran.

    Attributes:
        parts: one per device, largest share first; empty when nothing could be proven.
        source: where the proof is from, e.g. "llama.cpp load log: layer assignments and buffer sizes".
    """

    parts: tuple[PlacementPart, ...] = ()
    source: str = ""

    def all_on(self, kind: DeviceKind) -> bool:
        """Whether every layer and node is proven to be on devices of this kind."""
        return bool(self.parts) and all(part.device_kind is kind for part in self.parts if part.layers or part.nodes)


class OpenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is to be loaded.

    Attributes:
        backend: one of the runner's backends.
        device_index: the API's own number of the device.
        context_tokens: context to reserve (LLM only).
        threads: CPU threads; 0 lets the runner choose.
        strict: refuse to load rather than let a part fall back to the CPU.
    """

    backend: str = "cpu"
    device_index: int = 0
    context_tokens: int = 2048
    threads: int = 0
    strict: bool = False


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a chat; role is "system", "user" or "assistant"."""

    role: str
    content: str


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a language model is asked.

    Attributes:
        messages: a chat, put through the file's own template; or else
        prompt: raw text, used as it is.
        temperature: 0 takes the likeliest token each time.
        stop: texts that end the answer and are not part of it.
    """

    messages: tuple[ChatMessage, ...] = ()
    prompt: str = ""
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"  # the model's own end, or a stop text
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished answer."""

    text: str
    finish_reason: FinishReason
    timing: Timing


class LanguageSession(Protocol):
    """A loaded language model; used by one thread at a time, in a worker process."""

    def generate(
        self, request: GenerateRequest, emit: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Generation:
        """Answer one request.

        Args:
            request: what is asked.
            emit: called with each new piece of whole characters, in order; the pieces joined are the answer.
            cancelled: asked between tokens; true ends the answer.
        """
        ...

    def placement(self) -> Placement:
        """Where the layers are, from the runtime's own evidence."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class TensorSession(Protocol):
    """A loaded tensor model: named tensors in, named tensors out; in a worker process."""

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run once.

        Args:
            inputs: input name -> NumPy array of the model's shape and dtype.

        Returns: output name -> NumPy array.
        """
        ...

    def placement(self) -> Placement:
        """Where the nodes ran, from the runtime's own evidence."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class Runner(Protocol):
    """A module of this folder that runs models of some formats."""

    NAME: str
    LAYER: int
    BACKENDS: Sequence[Backend]

    def accepts(self, model: ModelInfo) -> Verdict:
        """Whether this runtime takes the model, device apart. Pure: nothing is imported or executed."""
        ...

    def check(self, backend: str) -> Finding:
        """Execute the bundled tiny model on `backend`, compare with the known answer; in a child."""
        ...

    def open(self, model: ModelInfo, options: OpenOptions) -> LanguageSession | TensorSession:
        """Load the model; in a worker process."""
        ...
