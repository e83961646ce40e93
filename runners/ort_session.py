"""A model that ONNX Runtime has loaded, and its errors as ours."""

from __future__ import annotations

import contextlib
import gc
import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.contract import ModelRejected, OutOfDeviceMemory, Placement, RunnerError, RuntimeUnavailable
from runners.model import ModelInfo
from runners.ort_errors import cause, is_device_failure, is_out_of_memory, provider_cause, remedy
from runners.ort_profile import placement_from_assignment, placement_from_profile

_ERROR_NAMES = (
    "EngineError",
    "EPFail",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
)
_NUMPY_NAMES = {"float": "float32", "double": "float64"}  # others are called as NumPy does


def library_errors() -> tuple[type[Exception], ...]:
    """Everything that the library raises for a model, an input or a device; its types have no common base."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    own = (getattr(state, name, None) for name in _ERROR_NAMES)
    return (*(kind for kind in own if isinstance(kind, type)), RuntimeError, ValueError, MemoryError)


def translated(error: Exception, model: ModelInfo, action: str, stderr: str = "") -> RunnerError:
    """The runner error for what the library raised.

    Args:
        error: one of `library_errors()`.
        model: the model at hand.
        action: what was tried: "load" or "run".
        stderr: what native code wrote meanwhile; it tells more than the exception when a library is missing.
    """
    kind, name = type(error).__name__, Path(model.path).name
    advice = remedy(f"{stderr}\n{error}")
    why = (provider_cause(stderr) if advice else "") or cause(str(error)) or kind
    if isinstance(error, MemoryError) or is_out_of_memory(str(error)):
        return OutOfDeviceMemory(
            f"{name}: not enough memory to {action} it: {why}", "close other programs, or take a smaller model"
        )
    if kind == "NoSuchFile":
        return ModelRejected(f"{model.path}: no such file")
    if kind == "InvalidProtobuf":
        return ModelRejected(f"{name} is not a readable ONNX file: {why}", "fetch it again and compare its sha256")
    if advice or kind == "EPFail" or is_device_failure(str(error)):
        return RuntimeUnavailable(f"ONNX Runtime could not {action} {name} on this backend: {why}", advice)
    return ModelRejected(f"ONNX Runtime could not {action} {name}: {why}")


class OrtSession:
    """A loaded model; see `runners.contract.TensorSession`. Made by `runners.onnxruntime.open`."""

    def __init__(self, session: Any, model: ModelInfo, profiling: bool) -> None:
        self._session = session
        self._model = model
        self._profiling = profiling
        self._errors = library_errors()
        self._outputs = [output.name for output in session.get_outputs()]
        self._placement: Placement | None = None
        if not profiling:
            pieces = session.get_provider_graph_assignment_info()
            self._placement = placement_from_assignment((p.ep_name, len(p.get_nodes())) for p in pieces)

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run once: input name -> array in, output name -> array out.

        Raises:
            ModelRejected: the model does not take these arrays, or fails on them.
            RuntimeUnavailable: the backend failed, e.g. it has no code for this GPU.
            OutOfDeviceMemory: there is not enough memory for it.
        """
        try:
            arrays = self._session.run(self._outputs, dict(inputs))
        except self._errors as error:
            raise translated(error, self._model, "run") from error
        if self._profiling:
            self._read_profile()
        return dict(zip(self._outputs, arrays, strict=True))

    def placement(self) -> Placement:
        """Where the nodes are: from the record of the load or, before release 1.27, from a first run's profile."""
        if self._placement is None:
            with contextlib.suppress(RunnerError):  # zeros may not suit the model: then its first real run tells
                self.run(self._zeros())
        return self._placement or Placement(source="no run was profiled yet")

    def close(self) -> None:
        """Give the memory back."""
        if self._session is not None and self._profiling:
            self._read_profile()
        self._session = None
        gc.collect()  # device memory is held until the session is collected

    def _zeros(self) -> dict[str, Any]:
        """Zeros for each input; a dynamic axis gets size 1.

        Raises:
            ModelRejected: NumPy has no such type (bfloat16, text, a sequence).
        """
        import numpy as np

        arrays = {}
        for info in self._session.get_inputs():
            shape = [size if isinstance(size, int) and size > 0 else 1 for size in info.shape]
            kind = info.type.removeprefix("tensor(").removesuffix(")")
            try:
                arrays[info.name] = np.zeros(shape, _NUMPY_NAMES.get(kind, kind))
            except TypeError as error:
                raise ModelRejected(f"no zeros can be made for the input {info.name}, {info.type}") from error
        return arrays

    def _read_profile(self) -> None:
        self._profiling = False
        path = Path(self._session.end_profiling())
        try:
            self._placement = placement_from_profile(path.read_bytes())
        except (OSError, ValueError) as error:
            self._placement = Placement(source=f"the profile of the first run could not be read: {error}")
        shutil.rmtree(path.parent, ignore_errors=True)  # a folder of its own, made at load
