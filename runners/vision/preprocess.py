"""One picture made into the model's tensor: resize, cut or pad, order of channels, normalise."""

from __future__ import annotations

from typing import Any

from runners.vision.spec import InputSpec, Resize

# Twice the size that is needed: the decoder's coarse halving then leaves a real resize to be done well.
DRAFT_MARGIN = 2


def least_px(spec: InputSpec) -> int:
    """The shortest side in pixels that a picture may be decoded at without harm for this model."""
    longest = max(spec.width_px, spec.height_px)
    return DRAFT_MARGIN * max(longest, spec.resize_short_px)


def prepare(image: Any, spec: InputSpec) -> Any:
    """The tensor of one picture, without the batch axis.

    Args:
        image: Pillow image, RGB, upright, any size.
        spec: what the model wants.

    Returns: (channels, height, width) or (height, width, channels), C-contiguous, of `spec.dtype`; order of channels
        R, G, B, or B, G, R for `spec.bgr`; grey for one channel.
    """
    fitted = _fitted(image, spec)
    if spec.channels == 1:
        fitted = fitted.convert("L")
    return normalised(fitted, spec)


def _fitted(image: Any, spec: InputSpec) -> Any:
    from PIL import Image

    size = (spec.width_px, spec.height_px)
    bilinear = Image.Resampling.BILINEAR
    if spec.resize is Resize.STRETCH:
        return image.resize(size, bilinear)
    if spec.resize is Resize.CROP:
        return image.resize(size, bilinear, box=crop_box(image.size, spec))
    ratio = min(spec.width_px / image.width, spec.height_px / image.height)
    inner = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    canvas = Image.new("RGB", size, (spec.pad,) * 3)
    canvas.paste(image.resize(inner, bilinear), ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return canvas


def crop_box(size: tuple[int, int], spec: InputSpec) -> tuple[float, float, float, float]:
    """The part of the picture that is left after resizing its short side and cutting the centre.

    Resizing that part alone gives the same samples as resizing all and cutting, for less work.

    Args:
        size: width and height of the picture in pixels.
        spec: what the model wants.

    Returns: left, upper, right, lower in pixels of the picture.
    """
    width, height = size
    # resize_short_px is meant for the shorter side of the input; the other follows by proportion
    margin = spec.resize_short_px / min(spec.width_px, spec.height_px)
    scale = max(margin * spec.width_px / width, margin * spec.height_px / height)
    cut_width, cut_height = min(width, spec.width_px / scale), min(height, spec.height_px / scale)
    left, upper = (width - cut_width) / 2, (height - cut_height) / 2
    return (left, upper, left + cut_width, upper + cut_height)


def normalised(image: Any, spec: InputSpec) -> Any:
    """The tensor of a picture that has the model's size already; shapes as in `prepare`."""
    import numpy as np

    pixels: Any = np.asarray(image)
    if spec.channels == 1:
        pixels = pixels[:, :, np.newaxis]
    elif spec.bgr:
        pixels = pixels[:, :, ::-1]
    if spec.channels_first:
        pixels = pixels.transpose(2, 0, 1)
    if spec.dtype == "uint8":
        return np.ascontiguousarray(pixels)
    along = (spec.channels, 1, 1) if spec.channels_first else (1, 1, spec.channels)
    std: Any = np.asarray(spec.std, np.float64)
    factor = (spec.scale / std).astype(np.float32).reshape(along)
    offset = (np.asarray(spec.mean, np.float64) / std).astype(np.float32).reshape(along)
    tensor: Any = np.empty(pixels.shape, np.float32)
    np.multiply(pixels, factor, out=tensor)
    tensor -= offset
    return tensor if spec.dtype == "float32" else tensor.astype(spec.dtype)
