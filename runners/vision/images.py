"""Picture files read as upright RGB, 8 bit: any mode, EXIF orientation applied, sizes bounded before decoding."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from typing import Any

from runners.contract import RunnerError

PIXELS_LIMIT = 80_000_000  # 240 MB as RGB; below the size from which Pillow itself warns
# Not all that Pillow knows: its rarer decoders are a wide field for hostile files, and EPS starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "MPO", "PPM", "BMP", "GIF", "TIFF", "AVIF", "JPEG2000")
ORIENTATION = 0x0112  # EXIF tag

# What decoders raise for damaged files, seen with mutated PNG, JPEG, GIF, BMP, TIFF, WebP and PPM files
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    struct.error,
    zlib.error,
)


class Picture:
    """One decoded picture.

    Attributes:
        image: a Pillow image of mode RGB, upright; smaller than the file's when a reduced size was asked for.
        width_px: width of the upright picture in the file.
        height_px: height likewise.
    """

    __slots__ = ("height_px", "image", "width_px")

    def __init__(self, image: Any, width_px: int, height_px: int) -> None:
        self.image = image
        self.width_px = width_px
        self.height_px = height_px


class UnreadablePicture(RunnerError):
    """The file can't be shown as a picture."""

    code = "unreadable_picture"


def read(path: str, least_px: int = 0) -> Picture:
    """Read a picture file.

    Args:
        path: a regular file of one of `FORMATS`; of an animation the first frame is taken.
        least_px: when > 0, a JPEG may be decoded at a half, quarter or eighth of its size, as long as both sides
            keep at least this many pixels: several times quicker for photographs.

    Returns: RGB, 8 bit. Grey is put on all three channels, transparency is dropped, palettes and CMYK are
        converted, 16 bit keeps its upper 8.

    Raises:
        UnreadablePicture: not a regular file, not a picture, damaged, cut short, or larger than `PIXELS_LIMIT` pixels.
        RunnerError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise RunnerError("Python package pillow is not installed", "pip install 'edge-agent[vision]'") from error
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnreadablePicture("not a regular file")  # opening a pipe would wait for its writer
        Image.init()  # does nothing the second time
        with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
            return _decoded(image, least_px)
    except Image.DecompressionBombError as error:
        raise UnreadablePicture(f"more than the {PIXELS_LIMIT} pixels allowed") from error
    except _DAMAGED as error:
        raise UnreadablePicture(_sentence(error)) from error


def _decoded(image: Any, least_px: int) -> Picture:
    width, height = image.size
    if width * height > PIXELS_LIMIT:
        raise UnreadablePicture(f"{width}x{height} is more than the {PIXELS_LIMIT} pixels allowed")
    if least_px > 0 and image.format == "JPEG":
        image.draft("RGB", (least_px, least_px))
    orientation = _orientation(image)
    upright = _upright(_rgb(image), orientation)
    return Picture(upright, *((height, width) if orientation >= 5 else (width, height)))


def _orientation(image: Any) -> int:
    """The EXIF orientation, 1 to 8; 1 is upright, and what a picture with a damaged EXIF block is taken for."""
    try:
        orientation = image.getexif().get(ORIENTATION)
    except _DAMAGED:
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _upright(image: Any, orientation: int) -> Any:
    from PIL import Image

    turn = Image.Transpose
    method = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return image if method is None else image.transpose(method)


def _rgb(image: Any) -> Any:
    if image.mode == "RGB":
        image.load()  # the pixels stay when the file is closed
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        import numpy as np
        from PIL import Image

        # Pillow's own conversion cuts everything over 255 to white
        grey = Image.fromarray((np.asarray(image).astype(np.int64) // 256).clip(0, 255).astype(np.uint8))
        return grey.convert("RGB")
    if image.mode in ("I", "F"):
        raise UnreadablePicture(f"{image.mode} pixels of 32 bit have no known range; convert it to 8 or 16 bit")
    return image.convert("RGB")


def _sentence(error: Exception) -> str:
    """The decoder's words without path and object addresses."""
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    if "cannot identify image file" in text:
        return "not a picture of a known format"
    return f"damaged: {text or type(error).__name__}"[:200]
