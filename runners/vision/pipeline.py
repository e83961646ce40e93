"""The vision pipeline: picture files in, classes out, in order.

Decoding and preparing run ahead in threads, the model runs in the calling thread, drawing and saving in one more. What
is under way is bounded, so that thousands of pictures need no more memory than a few.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from runners.contract import RunnerError, TensorSession
from runners.messages import Classify
from runners.model import ModelInfo
from runners.timing import Timing, vision_timing
from runners.vision import images
from runners.vision.annotate import LONGEST_PX, Annotator
from runners.vision.classifier import Classifier
from runners.vision.decode import probabilities, top_classes
from runners.vision.preprocess import least_px, prepare
from runners.vision.spec import InputSpec, vision_spec

DECODERS_LIMIT = 4  # threads; more does not help while one model runs
SAVES_LIMIT = 4  # annotated pictures that may wait to be saved

Emit = Callable[[dict[str, Any]], None]


def classify(
    session: TensorSession,
    model: ModelInfo,
    message: Classify,
    emit: Emit,
    cancelled: Callable[[], bool],
) -> Timing:
    """Classify picture files with a loaded model.

    Args:
        session: the model, loaded; used by the calling thread only.
        model: what its file says.
        message: which pictures, and how.
        emit: called in the calling thread with one dictionary per picture, in the order of `message.images`. Either
            sequence, image, width_px, height_px (of the upright picture), classes (index, label, probability; likeliest
            first), latency_s (from its decoding to its classes, waiting included), annotated (path, or null; then
            annotated_error says why if it was asked for); or sequence, image, error. The first one also has notes, if
            there are any: sentences on what was assumed about the model.
        cancelled: asked between runs; true ends the pipeline, and what was classified so far is emitted.

    Returns: the times of the pictures that were classified; `dropped` counts those that were not read.

    Raises:
        RunnerError: the model is no picture classifier, or failed, or the folder for annotated pictures can't be made.
    """
    start_s = time.perf_counter()
    classifier = _classifier(session, model, message)
    annotator = _annotator(message.annotate_dir)
    with ThreadPoolExecutor(1, "annotate") as saver, _Decoders(message.images, classifier, annotator) as decoders:
        outbox = _Outbox(emit, (*classifier.spec.notes, *classifier.notes), saver, annotator)
        try:
            while not cancelled() and (group := decoders.take(classifier.batch)):
                for item, result in _classified(classifier, group, message.top):
                    outbox.add(item, result)
        finally:
            outbox.flush()
    return vision_timing(time.perf_counter() - start_s, outbox.latencies_s, dropped=outbox.dropped)


def _classifier(session: TensorSession, model: ModelInfo, message: Classify) -> Classifier:
    spec = vision_spec(model)
    if message.labels:
        spec = msgspec.structs.replace(spec, labels=message.labels)
    classifier = Classifier(session, spec)
    classifier.settle(message.batch, len(message.images))
    return classifier


def _annotator(folder: str) -> Annotator | None:
    if not folder:
        return None
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise RunnerError(
            f"{folder}: no folder for annotated pictures can be made: {error.strerror}", "choose another folder"
        ) from error
    return Annotator(folder)


class _Item:
    """One picture on its way: either `tensor` or `error`; `image` only when it is to be annotated."""

    __slots__ = ("error", "height_px", "image", "path", "sequence", "start_s", "tensor", "width_px")

    def __init__(self, sequence: int, path: str) -> None:
        self.sequence = sequence
        self.path = path
        self.start_s = time.perf_counter()
        self.tensor: Any = None
        self.image: Any = None
        self.width_px = self.height_px = 0
        self.error = ""


def _decode(sequence: int, path: str, spec: InputSpec, keep_image: bool) -> _Item:
    """Read and prepare one picture; what is wrong with it goes into the item."""
    item = _Item(sequence, path)
    try:
        picture = images.read(path, max(least_px(spec), LONGEST_PX) if keep_image else least_px(spec))
    except images.UnreadablePicture as error:
        item.error = error.reason
        return item
    item.tensor = prepare(picture.image, spec)
    item.width_px, item.height_px = picture.width_px, picture.height_px
    if keep_image:
        item.image = picture.image
    return item


class _Decoders:
    """Threads that decode a bounded number of pictures ahead; a context manager."""

    def __init__(self, paths: Sequence[str], classifier: Classifier, annotator: Annotator | None) -> None:
        threads = min(DECODERS_LIMIT, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(threads, "decode")
        self._ahead = 2 * classifier.batch + threads
        self._waiting = iter(enumerate(paths))
        self._futures: deque[Future[_Item]] = deque()
        self._spec = classifier.spec.input
        self._keep_image = annotator is not None

    def __enter__(self) -> _Decoders:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, count: int) -> list[_Item]:
        """The next `count` pictures in order, fewer at the end, none after it."""
        taken: list[_Item] = []
        while len(taken) < count:
            self._fill()
            if not self._futures:
                break
            taken.append(self._futures.popleft().result())
        self._fill()  # so that the threads work while the model runs
        return taken

    def _fill(self) -> None:
        while len(self._futures) < self._ahead:
            following = next(self._waiting, None)
            if following is None:
                return
            self._futures.append(self._pool.submit(_decode, *following, self._spec, self._keep_image))


def _classified(classifier: Classifier, group: list[_Item], top: int) -> Iterator[tuple[_Item, dict[str, Any]]]:
    """Each picture of one run with its result, in order; unreadable ones among them."""
    tensors = [item.tensor for item in group if not item.error]
    rows = iter(classifier.rows(tensors, classifier.batch) if tensors else ())
    for item in group:
        result: dict[str, Any] = {"sequence": item.sequence, "image": item.path}
        if not item.error:
            try:
                values = probabilities(next(rows), classifier.scores)
            except ValueError as error:
                item.error = str(error)
            else:
                result["width_px"], result["height_px"] = item.width_px, item.height_px
                result["classes"] = top_classes(values, classifier.labels, top)
                result["latency_s"] = time.perf_counter() - item.start_s
                result["annotated"] = None
        if item.error:
            result["error"] = item.error
        yield item, result


class _Outbox:
    """Results on their way out: in order, each after its annotated picture is saved.

    Attributes:
        latencies_s: of the pictures that were classified, seconds.
        dropped: pictures that were not.
    """

    def __init__(
        self, emit: Emit, notes: Sequence[str], saver: ThreadPoolExecutor, annotator: Annotator | None
    ) -> None:
        self._emit = emit
        self._notes = list(notes)
        self._saver = saver
        self._annotator = annotator
        self._waiting: deque[tuple[dict[str, Any], Future[str] | None]] = deque()
        self.latencies_s: list[float] = []
        self.dropped = 0

    def add(self, item: _Item, result: dict[str, Any]) -> None:
        """Take one result, in order; those that are ready go out."""
        saving = None
        if item.error:
            self.dropped += 1
        else:
            self.latencies_s.append(result["latency_s"])
            if self._annotator is not None:
                saving = self._saver.submit(
                    self._annotator.save, item.image, item.path, item.sequence, result["classes"]
                )
        self._waiting.append((result, saving))
        while self._waiting and (len(self._waiting) > SAVES_LIMIT or _is_ready(self._waiting[0][1])):
            self._send(*self._waiting.popleft())

    def flush(self) -> None:
        """Send what is left, after its pictures are saved."""
        while self._waiting:
            self._send(*self._waiting.popleft())

    def _send(self, result: dict[str, Any], saving: Future[str] | None) -> None:
        if saving is not None:
            try:
                result["annotated"] = saving.result()
            except OSError as error:
                result["annotated_error"] = f"could not be saved: {error.strerror or error}"
        if self._notes:
            result["notes"], self._notes = self._notes, []
        self._emit(result)


def _is_ready(saving: Future[str] | None) -> bool:
    return saving is None or saving.done()
