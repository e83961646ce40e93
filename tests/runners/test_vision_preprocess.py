"""Pictures into tensors, numbers into classes, and what a model file says of both."""

from __future__ import annotations

from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="package numpy is not installed: no picture was prepared")
Image = pytest.importorskip("PIL.Image", reason="package pillow is not installed: no picture was prepared")

import msgspec  # noqa: E402
import onnx_models as models  # noqa: E402

from runners.contract import ModelRejected  # noqa: E402
from runners.model import ModelInfo, TensorInfo  # noqa: E402
from runners.vision.decode import probabilities, settle, top_classes  # noqa: E402
from runners.vision.preprocess import crop_box, least_px, prepare  # noqa: E402
from runners.vision.spec import InputSpec, Resize, Scores, vision_spec  # noqa: E402

PLAIN = InputSpec(
    name="x",
    width_px=8,
    height_px=8,
    channels=3,
    channels_first=True,
    dtype="float32",
    resize=Resize.STRETCH,
    resize_short_px=8,
    bgr=False,
    scale=1 / 255,
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    pad=114,
)


def change(**fields: object) -> InputSpec:
    return msgspec.structs.replace(PLAIN, **fields)


def of_colour(colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> object:
    return Image.new("RGB", size, colour)


def test_channel_0_is_red_and_2_is_blue() -> None:
    image = of_colour((255, 0, 0), (8, 8))
    image.paste((0, 0, 255), (4, 0, 8, 8))
    tensor = prepare(image, PLAIN)
    assert tensor.shape == (3, 8, 8)
    assert tensor[0, 0].tolist() == [1] * 4 + [0] * 4
    assert tensor[1].max() == 0
    assert tensor[2, 0].tolist() == [0] * 4 + [1] * 4


def test_a_bgr_model_gets_blue_first() -> None:
    assert prepare(of_colour((255, 0, 0)), change(bgr=True))[:, 0, 0].tolist() == [0, 0, 1]


def test_mean_and_deviation_follow_the_order_of_the_tensor() -> None:
    spec = change(mean=(0.5, 0.0, 0.25), std=(0.5, 1.0, 0.25))
    assert prepare(of_colour((255, 255, 0)), spec)[:, 0, 0].tolist() == pytest.approx([1, 1, -1])


def test_channels_last_and_bytes_are_raw_pixels() -> None:
    tensor = prepare(of_colour((255, 128, 1)), change(channels_first=False, dtype="uint8"))
    assert tensor.dtype == np.uint8
    assert tensor.shape == (8, 8, 3)
    assert tensor[0, 0].tolist() == [255, 128, 1]


def test_half_precision_is_given_as_the_model_wants_it() -> None:
    assert prepare(of_colour((255, 0, 0)), change(dtype="float16")).dtype == np.float16


def test_a_grey_model_gets_one_channel() -> None:
    spec = change(channels=1, mean=(0.0,), std=(1.0,))
    tensor = prepare(of_colour((255, 255, 255)), spec)
    assert tensor.shape == (1, 8, 8)
    assert tensor.max() == pytest.approx(1)


def test_the_crop_takes_the_centre_of_the_long_side() -> None:
    spec = change(resize=Resize.CROP, resize_short_px=8)
    assert crop_box((20, 10), spec) == (5, 0, 15, 10)
    assert crop_box((10, 20), spec) == (0, 5, 10, 15)


def test_the_usual_256_to_224_leaves_a_margin_on_all_sides() -> None:
    spec = change(resize=Resize.CROP, width_px=224, height_px=224, resize_short_px=256)
    assert crop_box((512, 512), spec) == (32, 32, 480, 480)


def test_cropping_equals_resizing_first_and_cutting_then() -> None:
    spec = change(resize=Resize.CROP, width_px=28, height_px=28, resize_short_px=32)
    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    by_hand = image.resize((48, 32), Image.Resampling.BILINEAR).crop((10, 2, 38, 30))
    expected = np.asarray(by_hand, np.float32).transpose(2, 0, 1) / 255
    assert np.abs(prepare(image, spec) - expected).max() < 1.5 / 255


def test_a_letterbox_keeps_all_of_the_picture_and_pads_evenly() -> None:
    tensor = prepare(of_colour((255, 255, 255), (16, 8)), change(resize=Resize.LETTERBOX))
    assert tensor[0, :, 0].tolist() == pytest.approx([114 / 255] * 2 + [1] * 4 + [114 / 255] * 2)


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (7, 5)])
@pytest.mark.parametrize("resize", list(Resize))
def test_any_size_of_picture_fits(size: tuple[int, int], resize: Resize) -> None:
    tensor = prepare(of_colour((255, 255, 255), size), change(resize=resize, resize_short_px=9))
    assert tensor.shape == (3, 8, 8)
    assert tensor.max() == pytest.approx(1)


def test_a_picture_is_never_decoded_smaller_than_twice_the_model_needs() -> None:
    assert least_px(change(resize_short_px=256, width_px=224)) == 512


# --- numbers into classes ---


def test_probabilities_are_not_softmaxed_again() -> None:
    row = np.array([0.9, 0.05, 0.05])
    assert settle([row]) is Scores.PROBABILITIES
    assert probabilities(row, Scores.PROBABILITIES).tolist() == row.tolist()


def test_logits_are_softmaxed() -> None:
    row = np.array([1000.0, 0.0])
    assert settle([row]) is Scores.LOGITS
    assert probabilities(row, Scores.LOGITS).tolist() == pytest.approx([1, 0])


def test_scores_that_do_not_sum_to_one_are_left_alone() -> None:
    row = np.array([0.9, 0.8, 0.1])
    assert settle([row]) is Scores.INDEPENDENT
    assert probabilities(row, Scores.INDEPENDENT).tolist() == row.tolist()


def test_one_class_is_a_yes_or_no() -> None:
    assert settle([np.array([0.7])]) is Scores.INDEPENDENT
    assert probabilities(np.array([0.0]), Scores.LOGITS).tolist() == [0.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        probabilities(np.array([value, 0]), Scores.LOGITS)


def test_a_score_outside_its_range_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ValueError, match='"scores": "logits"'):
        probabilities(np.array([7.0, 0.1]), Scores.INDEPENDENT)


def test_the_likeliest_classes_come_first_and_equal_ones_by_index() -> None:
    classes = top_classes(np.array([0.2, 0.4, 0.4]), ("a", "b", "c"), 2)
    assert [(one["index"], one["label"]) for one in classes] == [(1, "b"), (2, "c")]


def test_more_classes_than_there_are_gives_all() -> None:
    assert len(top_classes(np.array([0.2, 0.8]), (), 5)) == 2
    assert top_classes(np.array([0.2, 0.8]), (), 1)[0]["label"] == "class 1"


# --- what a file wants ---


def info(path: Path, shape: list[object], dtype: str = "float32", output: tuple[object, ...] = ("N", 4)) -> ModelInfo:
    return ModelInfo(
        path=str(path / "net.onnx"),
        format="onnx",
        size_bytes=1,
        inputs=(TensorInfo(name="x", shape=tuple(shape), dtype=dtype),),
        outputs=(TensorInfo(name="y", shape=output, dtype="float32"),),
        labels=("file",),
    )


def test_without_any_word_on_it_a_model_is_prepared_as_for_imagenet_and_says_so(tmp_path: Path) -> None:
    spec = vision_spec(info(tmp_path, ["N", 3, 224, 224]))
    assert (spec.input.resize, spec.input.resize_short_px) == (Resize.CROP, 256)
    assert spec.input.mean == (0.485, 0.456, 0.406)
    assert spec.batch is None
    assert spec.labels == ("file",)
    assert "does not say how pictures are prepared" in spec.notes[0]


def test_a_sidecar_is_believed(tmp_path: Path) -> None:
    model = info(tmp_path, [1, 3, 32, 48])
    models.sidecar(model, '{"resize": "letterbox", "bgr": true, "mean": [0,0,0], "std": [1,1,1], "labels": ["a"]}')
    spec = vision_spec(model)
    assert (spec.input.width_px, spec.input.height_px, spec.batch) == (48, 32, 1)
    assert spec.input.resize is Resize.LETTERBOX
    assert spec.input.bgr
    assert spec.labels == ("a",)
    assert spec.notes == ()


def test_a_labels_file_goes_before_the_labels_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "net.labels.txt").write_text("cat\ndog\n", "utf-8")
    assert vision_spec(info(tmp_path, ["N", 3, 8, 8])).labels == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"lables": []}', "lables"),
        ('{"resize": "cut"}', "cut"),
        ("not json", "malformed"),
        ('{"mean": [0.5]}', "3 numbers each"),
        ('{"std": [1, 0, 1]}', "std must not be 0"),
        ('{"resize_short_px": 4}', "less than the input"),
        ('{"output": "z"}', "no output 'z'"),
    ],
)
def test_a_wrong_sidecar_is_named_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    model = models.sidecar(info(tmp_path, ["N", 3, 8, 8]), text)
    with pytest.raises(ModelRejected, match=words) as caught:
        vision_spec(model)
    assert "net.onnx.json" in caught.value.reason


@pytest.mark.parametrize("axis", ["height", None, 0, -1])
def test_an_open_size_is_taken_as_224_and_told(tmp_path: Path, axis: object) -> None:
    spec = vision_spec(info(tmp_path, [axis, 3, axis, axis]))
    assert (spec.input.width_px, spec.input.height_px, spec.batch) == (224, 224, None)
    assert "leaves the picture size open" in spec.notes[0]


def test_channels_last_is_recognised(tmp_path: Path) -> None:
    spec = vision_spec(info(tmp_path, [1, 20, 30, 3], "uint8"))
    assert not spec.input.channels_first
    assert (spec.input.width_px, spec.input.height_px) == (30, 20)


@pytest.mark.parametrize(
    ("shape", "dtype"), [([], "float32"), (["N", 3], "float32"), ([1, 7, 8, 8], "float32"), ([1, 3, 8, 8], "int64")]
)
def test_an_input_that_is_no_picture_is_refused_with_its_shape(tmp_path: Path, shape: list[object], dtype: str) -> None:
    with pytest.raises(ModelRejected, match="no picture classifier") as caught:
        vision_spec(info(tmp_path, shape, dtype))
    assert str(shape) in caught.value.reason


def test_a_detector_is_refused_by_the_shape_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match=r"\[1, 84, 8400\]"):
        vision_spec(info(tmp_path, [1, 3, 640, 640], output=(1, 84, 8400)))


def test_an_ultralytics_classifier_gets_no_imagenet_mean(tmp_path: Path) -> None:
    model = msgspec.structs.replace(info(tmp_path, [1, 3, 224, 224]), metadata={"author": "Ultralytics"})
    spec = vision_spec(model)
    assert spec.input.mean == (0.0, 0.0, 0.0)
    assert spec.input.resize_short_px == 224
