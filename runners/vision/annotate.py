"""Pictures with a bar of class names below, saved so that a file is either whole or not there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LONGEST_PX = 1280  # the annotated picture is for looking at
NAME_BYTES = 120
JPEG_QUALITY = 90


class Annotator:
    """Draws and saves; used by one thread at a time.

    Args:
        folder: where the pictures go; it is there already.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._fonts: dict[int, Any] = {}

    def save(self, image: Any, source: str, sequence: int, classes: Sequence[Mapping[str, object]]) -> str:
        """Save one annotated picture.

        Args:
            image: Pillow image, RGB, upright; it is left as it is.
            source: path of the picture; a PNG stays a PNG, anything else becomes a JPEG.
            sequence: number of the picture in its run: two pictures of one name get two files.
            classes: "label" and "probability" of each, likeliest first.

        Returns: the path.

        Raises:
            OSError: it could not be written; nothing is left behind.
        """
        path = self._folder / annotated_name(source, sequence)
        part = path.with_name(f".{path.name}.part")
        try:
            drawn = self._drawn(image, classes)
            if path.suffix == ".png":
                drawn.save(part, format="PNG", compress_level=1)
            else:
                drawn.save(part, format="JPEG", quality=JPEG_QUALITY)
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        return str(path)

    def _drawn(self, image: Any, classes: Sequence[Mapping[str, object]]) -> Any:
        from PIL import Image, ImageDraw

        picture = image
        if max(image.size) > LONGEST_PX:
            ratio = LONGEST_PX / max(image.size)
            size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
            picture = image.resize(size, Image.Resampling.BILINEAR)
        width, height = max(picture.width, 64), picture.height
        text_px = max(10, min(24, width // 16))
        line_px = text_px * 3 // 2
        canvas = Image.new("RGB", (width, height + line_px * len(classes) + text_px // 2), (24, 24, 24))
        canvas.paste(picture, ((width - picture.width) // 2, 0))
        draw = ImageDraw.Draw(canvas)
        for row, one in enumerate(classes):
            text = f"{float(str(one['probability'])):6.1%}  {one['label']}"
            place = (text_px // 2, height + row * line_px + text_px // 4)
            draw.text(place, text, fill=(255, 255, 255) if row == 0 else (170, 170, 170), font=self._font(text_px))
        return canvas

    def _font(self, text_px: int) -> Any:
        from PIL import ImageFont

        if text_px not in self._fonts:
            self._fonts[text_px] = ImageFont.load_default(text_px)
        return self._fonts[text_px]


def annotated_name(source: str, sequence: int) -> str:
    """File name of an annotated picture: number and name of its source, without characters that trouble a shell."""
    path = Path(source)
    stem = re.sub(r"[^\w.-]+", "_", path.stem).encode()[:NAME_BYTES].decode("utf-8", "ignore")
    return f"{sequence:06d}-{stem}{'.png' if path.suffix.lower() == '.png' else '.jpg'}"
