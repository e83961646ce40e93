"""Rows of class scores from a tensor session, and how many pictures go into one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from runners.contract import ModelRejected, TensorSession
from runners.vision.decode import settle
from runners.vision.spec import Scores, VisionSpec

LARGEST_CHOSEN = 4  # pictures per run when the choice is ours
LEAST_PICTURES = 8  # below that, trying out batches costs more than it gains
WORTH_IT = 0.95  # a batch must take at most this share of the time per picture
ROW_TOLERANCE = 2e-3  # other kernels for other batch sizes, TF32 on GPUs


class Classifier:
    """A picture classifier: `spec` says how its session is fed.

    Attributes:
        batch: pictures per run, as `settle` found it.
        scores: what the numbers are, likewise.
        labels: class names in order; empty when there are none that fit.
        notes: sentences on what was found out.
    """

    def __init__(self, session: TensorSession, spec: VisionSpec) -> None:
        self._session = session
        self.spec = spec
        self.batch = spec.batch or 1
        self.scores = spec.scores
        self.labels = spec.labels
        self.notes: list[str] = []

    def rows(self, tensors: Sequence[Any], batch: int) -> list[Any]:
        """One row of numbers for each picture.

        Args:
            tensors: at most `batch` prepared pictures, at least one; the last is repeated to fill the batch.
            batch: size of the model's first axis in this run.

        Raises:
            ModelRejected: the answer has another number of rows than there were pictures.
        """
        import numpy as np

        stacked = np.stack([*tensors, *[tensors[-1]] * (batch - len(tensors))])
        answer = self._session.run({self.spec.input.name: stacked})[self.spec.output]
        if answer.ndim == 0 or answer.shape[0] != batch:
            raise ModelRejected(
                f"{self.spec.model_name} answered {batch} pictures with an output of shape {list(answer.shape)}"
            )
        return list(answer.reshape(batch, -1)[: len(tensors)])

    def settle(self, wanted: int, pictures: int) -> None:
        """Try the model on two made-up pictures: what its numbers are, and which batch it takes rightly.

        Args:
            wanted: pictures per run; 0 to choose.
            pictures: how many there are to classify.

        Raises:
            RunnerError: the model fails on a single picture.
        """
        samples = _samples(self.spec)
        single = [self.rows([sample], self.batch)[0] for sample in samples]
        if self.scores is Scores.AUTO:
            self.scores = settle(single)
        if self.scores is Scores.INDEPENDENT and self.spec.scores is Scores.AUTO and single[0].size > 1:
            self.notes.append("the scores do not sum to 1: each class is taken for itself")
        if self.labels and len(self.labels) != single[0].size:
            self.notes.append(f"{len(self.labels)} labels for {single[0].size} classes: classes are told by number")
            self.labels = ()
        if self.spec.batch is not None:
            if wanted not in (0, self.spec.batch):
                self.notes.append(
                    f"the file fixes {self.spec.batch} pictures per run: {wanted} can't be had, "
                    "and short runs are filled up"
                )
        elif wanted != 1:
            self._settle_batch(wanted, pictures, samples, single)

    def _settle_batch(self, wanted: int, pictures: int, samples: list[Any], single: list[Any]) -> None:
        if wanted == 0 and (pictures < LEAST_PICTURES or self._builds_per_shape()):
            return
        batch = min(wanted or LARGEST_CHOSEN, max(pictures, 1))
        if batch == 1:
            return
        filled = [samples[i % 2] for i in range(batch)]
        problem = self._problem(filled, single)
        if problem:
            self.notes.append(
                f"the batch axis of {self.spec.model_name} is open in name only ({problem}): one picture per run"
            )
        elif wanted or self._time_s(filled) <= WORTH_IT * self._time_s(samples[:1]):
            self.batch = batch

    def _problem(self, filled: list[Any], single: list[Any]) -> str:
        """What is wrong with the answer to a batch, compared with the answers to its pictures alone; "" if nothing."""
        import numpy as np

        try:
            rows = self.rows(filled, len(filled))
        except ModelRejected as error:
            return error.reason
        for i, row in enumerate(rows):
            if not np.allclose(row, single[i % 2], rtol=ROW_TOLERANCE, atol=ROW_TOLERANCE, equal_nan=True):
                return f"in a batch of {len(filled)} a picture gets another answer than alone"
        return ""

    def _time_s(self, tensors: list[Any]) -> float:
        """Seconds per picture, the better of two runs."""
        times = []
        for _ in range(2):
            start_s = time.perf_counter()
            self.rows(tensors, len(tensors))
            times.append((time.perf_counter() - start_s) / len(tensors))
        return min(times)

    def _builds_per_shape(self) -> bool:
        """Whether a new shape may cost minutes: TensorRT builds an engine for it."""
        return any(part.device.startswith(("Tensorrt", "NvTensorRT")) for part in self._session.placement().parts)


def _samples(spec: VisionSpec) -> list[Any]:
    """Two different made-up pictures, the same ones every time: noise, dark and bright."""
    import numpy as np
    from PIL import Image

    from runners.vision.preprocess import normalised

    noise = np.random.default_rng(1)
    shape = (spec.input.height_px, spec.input.width_px, 3)
    tensors = []
    for low, high in ((0, 96), (128, 256)):
        image = Image.fromarray(noise.integers(low, high, shape, dtype=np.uint8), "RGB")
        tensors.append(normalised(image.convert("L") if spec.input.channels == 1 else image, spec.input))
    return tensors
