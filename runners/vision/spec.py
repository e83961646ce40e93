"""What a picture model wants and answers: from its inputs, its metadata, and a sidecar beside the file.

Two sidecars are read, both optional, for `net.onnx`: `net.onnx.json` (the fields of `Sidecar`) and `net.labels.txt`
(one class name a line). What neither they nor the file say is taken as is usual for the kind, and told as a note.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from runners.contract import ModelRejected
from runners.model import ModelInfo, TensorInfo

SIDECAR_LIMIT_BYTES = 4 << 20
DEFAULT_SIDE_PX = 224
SHORT_SIDE_RATIO = 256 / 224  # resize the short side to 256, cut 224 from the centre
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PAD_GREY = 114
DTYPES = ("float32", "float16", "uint8")


class Resize(enum.Enum):
    """How a picture of any size becomes one of the model's."""

    CROP = "crop"  # short side to a given length, then the centre
    LETTERBOX = "letterbox"  # whole picture, sides kept in proportion, the rest padded
    STRETCH = "stretch"  # whole picture, proportions lost


class Scores(enum.Enum):
    """What the numbers of the output are."""

    AUTO = "auto"  # told from the answers to two test inputs
    LOGITS = "logits"  # softmax is needed
    PROBABILITIES = "probabilities"  # they sum to 1
    INDEPENDENT = "independent"  # each class for itself, 0 to 1


class Sidecar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `<model file>.json` may say; all optional.

    Attributes:
        labels: class names in order.
        resize: "crop", "letterbox" or "stretch".
        resize_short_px: for "crop", length of the short side before cutting.
        width_px: input width where the file leaves it open; `height_px` likewise.
        bgr: whether the model wants blue first.
        scale: factor on pixel values 0..255, before mean and standard deviation.
        mean: per channel, in the order of the tensor, after scaling.
        std: likewise.
        pad: grey value 0..255 around a letterboxed picture.
        scores: what the output's numbers are: "logits", "probabilities", "independent", "auto".
        output: name of the output with the class scores.
    """

    labels: tuple[str, ...] = ()
    resize: Resize | None = None
    resize_short_px: int | None = None
    width_px: int | None = None
    height_px: int | None = None
    bgr: bool = False
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    pad: int = PAD_GREY
    scores: Scores = Scores.AUTO
    output: str = ""


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One picture as the model takes it.

    Attributes:
        name: of the model's input.
        channels: 3, or 1 for grey.
        channels_first: (channels, height, width) when true, (height, width, channels) when false.
        dtype: "float32", "float16" or "uint8".
        mean: one number per channel; the tensor is (pixel * scale - mean) / std, but raw pixels for uint8.
    """

    name: str
    width_px: int
    height_px: int
    channels: int
    channels_first: bool
    dtype: str
    resize: Resize
    resize_short_px: int
    bgr: bool
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int


class VisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A picture classifier.

    Attributes:
        batch: pictures per run that the file fixes; None when it leaves that open.
        labels: class names in order; empty when nobody names them.
        notes: what was assumed, as sentences.
    """

    model_name: str
    input: InputSpec
    output: str
    scores: Scores
    batch: int | None
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()


def vision_spec(model: ModelInfo) -> VisionSpec:
    """How to use this model as a picture classifier.

    Raises:
        ModelRejected: it has no picture input or no class scores, or a sidecar is wrong; the sentence says what.
    """
    sidecar = read_sidecar(model.path)
    if len(model.inputs) != 1:
        names = ", ".join(one.name for one in model.inputs) or "none"
        raise ModelRejected(f"{_name(model)} is no picture classifier: it has {len(model.inputs)} inputs ({names})")
    picture = model.inputs[0]
    notes: list[str] = []
    return VisionSpec(
        model_name=_name(model),
        input=_input_spec(model, picture, sidecar or Sidecar(), sidecar is not None, notes),
        output=_output_name(model, sidecar or Sidecar()),
        scores=(sidecar or Sidecar()).scores,
        batch=_size(picture.shape[0]),
        labels=(sidecar.labels if sidecar else ()) or _labels_file(model.path) or model.labels,
        notes=tuple(notes),
    )


def read_sidecar(model_path: str) -> Sidecar | None:
    """The sidecar of a model file, or None when there is none.

    Raises:
        ModelRejected: it is there but not readable, or a field is unknown or of the wrong kind.
    """
    path = Path(f"{model_path}.json")
    text = _small_file(path)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Sidecar)
    except msgspec.MsgspecError as error:
        known = ", ".join(Sidecar.__struct_fields__)
        raise ModelRejected(f"{path}: {error}", f"a sidecar is a JSON object; its fields are {known}") from error


def _labels_file(model_path: str) -> tuple[str, ...]:
    path = Path(model_path).with_suffix(".labels.txt")
    text = _small_file(path)
    if text is None:
        return ()
    try:
        return tuple(line.strip() for line in text.decode("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise ModelRejected(f"{path}: not text in UTF-8") from error


def _small_file(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(SIDECAR_LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelRejected(f"{path}: {error.strerror}") from error


def _name(model: ModelInfo) -> str:
    return Path(model.path).name


def _size(axis: int | str | None) -> int | None:
    """The size of an axis, or None when it is open: a name, not stated, 0 and -1 all occur."""
    return axis if isinstance(axis, int) and axis > 0 else None


def _input_spec(
    model: ModelInfo, picture: TensorInfo, sidecar: Sidecar, described: bool, notes: list[str]
) -> InputSpec:
    if len(picture.shape) != 4 or picture.dtype not in DTYPES:
        raise ModelRejected(
            f"{_name(model)} is no picture classifier: its input {picture.name} is {picture.dtype} "
            f"{list(picture.shape)}, not {' or '.join(DTYPES)} with 4 axes"
        )
    channels_first, channels = _channels(model, picture)
    height_axis, width_axis = picture.shape[2:] if channels_first else picture.shape[1:3]
    width, height = _size(width_axis) or sidecar.width_px, _size(height_axis) or sidecar.height_px
    if width is None or height is None:
        width, height = width or height or DEFAULT_SIDE_PX, height or width or DEFAULT_SIDE_PX
        notes.append(f"the file leaves the picture size open: {width}x{height} is used")
    mean, std, short_px = _usual(model, picture, channels, min(width, height))
    if not described and picture.dtype != "uint8":
        notes.append(
            f"the file does not say how pictures are prepared: short side to {short_px} px, centre, "
            f"mean {list(mean)}, standard deviation {list(std)}; {_name(model)}.json may say otherwise"
        )
    spec = InputSpec(
        name=picture.name,
        width_px=width,
        height_px=height,
        channels=channels,
        channels_first=channels_first,
        dtype=picture.dtype,
        resize=sidecar.resize or Resize.CROP,
        resize_short_px=sidecar.resize_short_px or short_px,
        bgr=sidecar.bgr,
        scale=1 / 255 if sidecar.scale is None else sidecar.scale,
        mean=mean if sidecar.mean is None else sidecar.mean,
        std=std if sidecar.std is None else sidecar.std,
        pad=sidecar.pad,
    )
    _validate(model, spec)
    return spec


def _channels(model: ModelInfo, picture: TensorInfo) -> tuple[bool, int]:
    """Whether channels come first, and how many there are."""
    second, last = _size(picture.shape[1]), _size(picture.shape[3])
    if second in (1, 3):
        return True, second
    if last in (1, 3):
        return False, last
    if second is None and last is None:
        return True, 3
    raise ModelRejected(
        f"{_name(model)} is no picture classifier: its input {picture.name} has shape {list(picture.shape)}, "
        "without an axis of 3 or 1 channels"
    )


def _usual(
    model: ModelInfo, picture: TensorInfo, channels: int, side_px: int
) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Mean, standard deviation and short side that are usual for such a model."""
    plain = ((0.0,) * channels, (1.0,) * channels)
    if "ultralytics" in str(model.metadata.get("author", "")).lower():
        return *plain, side_px  # its classifiers take 0..1 of the largest centre square
    if channels == 3 and picture.dtype != "uint8":
        return IMAGENET_MEAN, IMAGENET_STD, round(side_px * SHORT_SIDE_RATIO)
    return *plain, round(side_px * SHORT_SIDE_RATIO)


def _validate(model: ModelInfo, spec: InputSpec) -> None:
    wrong = ""
    if len(spec.mean) != spec.channels or len(spec.std) != spec.channels:
        wrong = f"mean and std need {spec.channels} numbers each"
    elif any(value == 0 for value in spec.std):
        wrong = "std must not be 0"
    elif spec.resize_short_px < min(spec.width_px, spec.height_px):
        wrong = f"resize_short_px is less than the input's {min(spec.width_px, spec.height_px)} px"
    elif not 0 <= spec.pad <= 255:
        wrong = "pad must be 0 to 255"
    if wrong:
        raise ModelRejected(f"{model.path}.json: {wrong}")


def _output_name(model: ModelInfo, sidecar: Sidecar) -> str:
    """The output with one row of class scores per picture."""
    if sidecar.output:
        if all(one.name != sidecar.output for one in model.outputs):
            names = ", ".join(one.name for one in model.outputs)
            raise ModelRejected(f"{model.path}.json: no output {sidecar.output!r}; there are {names}")
        return sidecar.output
    for one in model.outputs:
        flat = [axis for axis in one.shape[2:] if axis != 1]
        if len(one.shape) >= 2 and not flat:
            return one.name
    if len(model.outputs) == 1 and not model.outputs[0].shape:
        return model.outputs[0].name  # the file does not state its shape: the first run will tell
    shapes = ", ".join(f"{one.name} {list(one.shape)}" for one in model.outputs) or "none"
    raise ModelRejected(
        f"{_name(model)} is no picture classifier: no output has one row of scores per picture ({shapes})",
        "name the right one in the sidecar's field output",
    )
