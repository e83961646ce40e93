"""The vision pipeline by real runs of ONNX Runtime: classes, order, damaged pictures, batches, cancelling."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="package onnxruntime is not installed: no vision model was run")
np = pytest.importorskip("numpy", reason="package numpy is not installed: no vision model was run")
Image = pytest.importorskip("PIL.Image", reason="package pillow is not installed: no vision model was run")

import msgspec  # noqa: E402
import onnx_models as models  # noqa: E402

from runners import onnxruntime as runner  # noqa: E402
from runners.contract import ModelRejected, OpenOptions, RunnerError  # noqa: E402
from runners.inspect import inspect  # noqa: E402
from runners.messages import Classify  # noqa: E402
from runners.model import ModelInfo, TensorInfo  # noqa: E402
from runners.timing import Timing  # noqa: E402
from runners.vision import images  # noqa: E402
from runners.vision.pipeline import classify  # noqa: E402

TURNED = (0, 3, 2, 1)  # class of a picture turned by k x 90 degrees, k = 0..3
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def run(
    model: ModelInfo, pictures: list[str] | list[Path], cancelled: Any = lambda: False, **fields: Any
) -> tuple[list[dict[str, Any]], Timing]:
    results: list[dict[str, Any]] = []
    session = runner.open(model, OpenOptions())
    message = Classify(images=tuple(str(path) for path in pictures), **fields)
    try:
        timing = classify(session, model, message, results.append, cancelled)
    finally:
        session.close()
    return results, timing


def paint(folder: Path, names: list[str], size: tuple[int, int] = (8, 8), suffix: str = ".png") -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}-{name}{suffix}" for number, name in enumerate(names)]
    for path, name in zip(paths, names):  # noqa: B905
        Image.new("RGB", size, COLOURS[name]).save(path)
    return paths


def best(results: list[dict[str, Any]]) -> list[int]:
    return [result["classes"][0]["index"] for result in results]


# --- the real model on real pictures ---


@pytest.fixture(scope="session")
def orientation_model(orientation: Path) -> ModelInfo:
    return inspect(str(orientation))


@pytest.fixture(scope="session")
def turned(astronaut: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Astronaut and page, each turned by 0, 90, 180 and 270 degrees."""
    folder = tmp_path_factory.mktemp("turned")
    paths = []
    for name in ("astronaut", "page"):
        with Image.open(astronaut.with_name(f"{name}.png")) as image:
            pixels = np.asarray(image.convert("RGB"))
        for k in range(4):
            paths.append(folder / f"{name}-{k}.png")
            Image.fromarray(np.rot90(pixels, k)).save(paths[-1])
    return paths


@pytest.mark.usefixtures("known_orientation")
def test_turned_pictures_get_their_classes_with_the_known_probability(
    orientation_model: ModelInfo, turned: list[Path]
) -> None:
    results, _ = run(orientation_model, turned)
    for result in results:
        assert 0.915 < result["classes"][0]["probability"] < 0.94
    page_1 = sorted(results[5]["classes"], key=lambda one: one["index"])
    assert page_1[-1]["probability"] == pytest.approx(0.9257, abs=0.003)


def test_turned_pictures_get_their_classes(orientation_model: ModelInfo, turned: list[Path]) -> None:
    results, timing = run(orientation_model, turned)
    assert best(results) == [*TURNED, *TURNED]
    assert [result["classes"][0]["label"] for result in results] == ["0", "270", "180", "90"] * 2
    assert timing.frames == 8
    assert timing.dropped == 0
    assert timing.latency is not None


def test_a_picture_turned_by_exif_is_classified_as_people_see_it(
    orientation_model: ModelInfo, astronaut: Path, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[images.ORIENTATION] = 6
    with Image.open(astronaut) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "camera.jpg", exif=exif)
    assert best(run(orientation_model, [tmp_path / "camera.jpg"])[0]) == [0]


@pytest.mark.parametrize("batch", [0, 1, 2, 3, 4])
def test_every_batch_size_gives_the_same_answers(orientation_model: ModelInfo, turned: list[Path], batch: int) -> None:
    expected = run(orientation_model, turned, batch=1)[0]
    results = run(orientation_model, turned, batch=batch)[0]
    assert [result["sequence"] for result in results] == list(range(8))
    for ours, single in zip(results, expected):  # noqa: B905
        assert [one["index"] for one in ours["classes"][:1]] == [one["index"] for one in single["classes"][:1]]
        assert ours["classes"][0]["probability"] == pytest.approx(single["classes"][0]["probability"], abs=1e-4)


def test_a_broken_picture_is_an_error_in_its_place_and_the_others_go_on(
    orientation_model: ModelInfo, turned: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(turned[0].read_bytes()[:5000])
    pictures = [*turned[:3], broken, tmp_path / "missing.png", turned[3]]
    results, timing = run(orientation_model, pictures, batch=4)
    assert [result["image"] for result in results] == [str(path) for path in pictures]
    assert best([*results[:3], results[5]]) == list(TURNED)
    assert "truncated" in results[3]["error"]
    assert results[4]["error"] == "No such file or directory"
    assert "classes" not in results[3]
    assert (timing.frames, timing.dropped) == (4, 2)


# --- order of channels (VI-02) ---


def test_red_is_channel_0_for_an_rgb_model(tmp_path: Path) -> None:
    pictures = paint(tmp_path / "in", ["red", "green", "blue"])
    results, _ = run(models.sidecar(models.channel_means(tmp_path)), pictures)
    assert best(results) == [0, 1, 2]
    assert results[0]["classes"][0]["probability"] == pytest.approx(1)


@pytest.mark.parametrize("suffix", [".ppm", ".bmp", ".gif", ".tif"])
def test_no_file_type_swaps_red_and_blue(tmp_path: Path, suffix: str) -> None:
    pictures = paint(tmp_path / "in", ["red", "blue"], suffix=suffix)
    assert best(run(models.sidecar(models.channel_means(tmp_path)), pictures)[0]) == [0, 2]


def test_a_bgr_model_gets_blue_first(tmp_path: Path) -> None:
    model = models.sidecar(models.channel_means(tmp_path), models.PLAIN.replace("{", '{"bgr": true, ', 1))
    assert best(run(model, paint(tmp_path / "in", ["red"]))[0]) == [2]


def test_a_channels_last_model_of_bytes_is_fed_raw_pixels(tmp_path: Path) -> None:
    assert best(run(models.channels_last_bytes(tmp_path), paint(tmp_path / "in", ["blue", "red"]))[0]) == [2, 0]


# --- batches (MF-28) ---


def notes(results: list[dict[str, Any]]) -> str:
    assert all("notes" not in result for result in results[1:])
    return " ".join(results[0].get("notes", ()))


@pytest.mark.parametrize("wanted", [0, 3])
@pytest.mark.parametrize("make", [models.first_item_only, models.mixes_rows])
def test_a_batch_axis_that_is_open_in_name_only_is_caught_and_told(tmp_path: Path, make: Any, wanted: int) -> None:
    names = ["red", "green", "blue"] * 4
    expected = run(models.sidecar(make(tmp_path)), paint(tmp_path / "in", names), batch=1)[0]
    results = run(models.sidecar(make(tmp_path)), paint(tmp_path / "in", names), batch=wanted)[0]
    assert "open in name only" in notes(results)
    assert [result["classes"] for result in results] == [result["classes"] for result in expected]


def test_a_real_batch_is_not_suspected(tmp_path: Path) -> None:
    results, _ = run(models.sidecar(models.channel_means(tmp_path)), paint(tmp_path / "in", ["red"] * 9), batch=3)
    assert "open in name only" not in notes(results)


def test_a_fixed_batch_of_64_is_filled_up_and_told(tmp_path: Path) -> None:
    model = models.sidecar(models.channel_means(tmp_path, batch=64))
    results, timing = run(model, paint(tmp_path / "in", ["blue", "red", "green"]), batch=2)
    assert best(results) == [2, 0, 1]
    assert timing.frames == 3
    assert "fixes 64 pictures per run" in notes(results)


@pytest.mark.parametrize("axis", [0, -1])
def test_an_axis_of_zero_or_minus_one_is_unknown_and_no_crash(tmp_path: Path, axis: int) -> None:
    model = models.channel_means(tmp_path)
    shape = (axis, 3, 8, 8)
    model = msgspec.structs.replace(model, inputs=(TensorInfo(name="images", shape=shape, dtype="float32"),))
    assert best(run(models.sidecar(model), paint(tmp_path / "in", ["blue"]))[0]) == [2]


def test_an_output_whose_shape_the_file_does_not_state_is_tried(tmp_path: Path) -> None:
    model = models.sidecar(models.channel_means(tmp_path))
    model = msgspec.structs.replace(model, outputs=(TensorInfo(name="scores", shape=(), dtype="float32"),))
    assert best(run(model, paint(tmp_path / "in", ["green"]))[0]) == [1]


# --- scores and labels ---


def test_logits_become_probabilities_and_others_stay(tmp_path: Path) -> None:
    scaled = models.PLAIN.replace("[0, 0, 0]", "[0.5, 0.5, 0.5]")
    results, _ = run(models.sidecar(models.logits(tmp_path), scaled), paint(tmp_path / "in", ["green"]))
    assert sum(one["probability"] for one in results[0]["classes"]) == pytest.approx(1)
    assert results[0]["classes"][0]["index"] == 1


def test_nan_is_an_error_of_the_picture_and_not_a_class(tmp_path: Path) -> None:
    results, timing = run(models.sidecar(models.not_a_number(tmp_path)), paint(tmp_path / "in", ["red"]))
    assert "not finite" in results[0]["error"]
    assert timing.frames == 0
    assert timing.frames_per_s is None


def test_labels_of_the_request_go_first(tmp_path: Path) -> None:
    model = models.sidecar(models.channel_means(tmp_path))
    results, _ = run(model, paint(tmp_path / "in", ["blue"]), labels=("r", "g", "b"), top=1)
    assert [one["label"] for one in results[0]["classes"]] == ["b"]


def test_labels_of_another_number_are_told_and_never_shifted(tmp_path: Path) -> None:
    model = models.sidecar(models.channel_means(tmp_path))
    results, _ = run(model, paint(tmp_path / "in", ["blue"]), labels=("background", "r", "g", "b"))
    assert results[0]["classes"][0]["label"] == "class 2"
    assert "4 labels for 3 classes" in notes(results)


# --- order, bounds, cancelling, pictures out ---


def test_results_come_in_order_however_long_each_picture_takes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pictures = []
    for number in range(24):
        side = 1500 if number % 5 == 0 else 8
        pictures.append(tmp_path / "in" / f"{number}.png")
        Image.new("RGB", (side, side), list(COLOURS.values())[number % 3]).save(pictures[-1])
    results, _ = run(models.sidecar(models.channel_means(tmp_path)), pictures, annotate_dir=str(tmp_path / "out"))
    assert [result["sequence"] for result in results] == list(range(24))
    assert best(results) == [0, 1, 2] * 8


def test_only_a_few_pictures_are_under_way_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, picture = models.sidecar(models.channel_means(tmp_path)), paint(tmp_path / "in", ["red"])[0]
    lock, reads, widest, emitted = threading.Lock(), [0], [0], [0]
    read = images.read

    def counted(path: str, least_px: int = 0) -> images.Picture:
        with lock:
            reads[0] += 1
            widest[0] = max(widest[0], reads[0] - emitted[0])
        return read(path, least_px)

    def emit(result: dict[str, Any]) -> None:
        emitted[0] += 1

    monkeypatch.setattr(images, "read", counted)
    session = runner.open(model, OpenOptions())
    message = Classify(images=(str(picture),) * 600, batch=1, annotate_dir=str(tmp_path / "out"))
    classify(session, model, message, emit, lambda: False)
    session.close()
    assert emitted[0] == 600
    assert widest[0] <= 16


def test_cancelling_ends_early_and_keeps_what_was_done(tmp_path: Path) -> None:
    picture = paint(tmp_path / "in", ["red"])[0]
    asked = [0]

    def cancelled() -> bool:
        asked[0] += 1
        return asked[0] > 10

    model = models.sidecar(models.channel_means(tmp_path))
    results, timing = run(model, [picture] * 500, cancelled, batch=1)
    assert len(results) == timing.frames == 10
    assert [result["sequence"] for result in results] == list(range(10))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("decode", "annotate"))]


def test_annotated_pictures_are_whole_and_of_two_with_one_name_both_are_kept(tmp_path: Path) -> None:
    pictures = [*paint(tmp_path / "a", ["red"], (300, 200)), *paint(tmp_path / "b", ["red"], (300, 200))]
    pictures += paint(tmp_path / "c", ["blue"], (3000, 1500), ".jpg")
    out = tmp_path / "out" / "deep"
    results, _ = run(models.sidecar(models.channel_means(tmp_path)), pictures, annotate_dir=str(out), top=2)
    paths = [Path(result["annotated"]) for result in results]
    assert [path.name for path in paths] == ["000000-0-red.png", "000001-0-red.png", "000002-0-blue.jpg"]
    assert sorted(out.iterdir()) == sorted(paths)  # no temporary file is left
    with Image.open(paths[0]) as image:
        assert image.width == 300
        assert image.height > 200
        assert image.getpixel((150, 100)) == (255, 0, 0)
        bar = np.asarray(image)[200:]
        assert bar.max() > 200  # letters
        assert bar.min() < 40
    with Image.open(paths[2]) as image:
        assert image.width == 1280
    assert (results[2]["width_px"], results[2]["height_px"]) == (3000, 1500)


def test_a_picture_that_cannot_be_saved_keeps_its_classes_and_says_why(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "000000-0-red.png").mkdir(parents=True)  # a folder is in the way
    results, _ = run(
        models.sidecar(models.channel_means(tmp_path)), paint(tmp_path / "in", ["red", "blue"]), annotate_dir=str(out)
    )
    assert results[0]["annotated"] is None
    assert "could not be saved" in results[0]["annotated_error"]
    assert best(results) == [0, 2]
    assert results[1]["annotated"]
    assert not list(out.glob(".*"))


def test_a_folder_that_cannot_be_made_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunnerError, match="no folder for annotated pictures"):
        run(
            models.channel_means(tmp_path), paint(tmp_path / "in", ["red"]), annotate_dir=str(tmp_path / "file" / "out")
        )


def test_a_model_that_is_no_classifier_is_refused_before_any_picture_is_read(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="no picture classifier"):
        run(models.relu(tmp_path), paint(tmp_path / "in", ["red"]))
