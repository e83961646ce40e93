"""Reading picture files: every mode becomes upright RGB, and what is damaged is a sentence."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from pathlib import Path

import pytest

np = pytest.importorskip("numpy", reason="package numpy is not installed: no picture was read")
Image = pytest.importorskip("PIL.Image", reason="package pillow is not installed: no picture was read")

from runners.contract import RunnerError  # noqa: E402
from runners.vision import images, inputs  # noqa: E402

RED, BLUE = (255, 0, 0), (0, 0, 255)


def red_blue() -> object:
    """Two pixels: red, then blue."""
    image = Image.new("RGB", (2, 1), RED)
    image.putpixel((1, 0), BLUE)
    return image


def pixels(path: Path) -> list[list[int]]:
    return np.asarray(images.read(str(path)).image).reshape(-1, 3).tolist()


def refusal(path: Path) -> str:
    with pytest.raises(images.UnreadablePicture) as caught:
        images.read(str(path))
    assert str(path) not in caught.value.reason
    assert " at 0x" not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "CMYK"])
def test_red_stays_red_from_every_colour_mode(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "picture.tif"
    red_blue().convert(mode).save(path)
    with Image.open(path) as stored:
        assert stored.mode == mode
    assert pixels(path) == [list(RED), list(BLUE)]


@pytest.mark.parametrize("suffix", [".ppm", ".bmp", ".png", ".gif", ".webp"])
def test_the_order_of_channels_does_not_depend_on_the_file_type(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    red_blue().save(path, **({"lossless": True} if suffix == ".webp" else {}))
    assert pixels(path) == [list(RED), list(BLUE)]


def test_grey_goes_on_all_three_channels(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    Image.new("L", (1, 1), 128).save(path)
    assert pixels(path) == [[128, 128, 128]]


def test_transparency_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "alpha.png"
    Image.new("RGBA", (1, 1), (255, 0, 0, 0)).save(path)
    assert pixels(path) == [[255, 0, 0]]


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16)).save(path)
    assert pixels(path) == [[0] * 3, [128] * 3, [255] * 3]


def test_float_pixels_are_refused_and_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "float.tif"
    Image.fromarray(np.array([[0.5, 7.0]], np.float32)).save(path)
    assert "no known range" in refusal(path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_ends_upright(tmp_path: Path, orientation: int) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8))
    turn = Image.Transpose
    stored = {
        1: upright,
        2: upright.transpose(turn.FLIP_LEFT_RIGHT),
        3: upright.transpose(turn.ROTATE_180),
        4: upright.transpose(turn.FLIP_TOP_BOTTOM),
        5: upright.transpose(turn.TRANSPOSE),
        6: upright.transpose(turn.ROTATE_90),  # the camera was turned: viewers turn it back by 270
        7: upright.transpose(turn.TRANSVERSE),
        8: upright.transpose(turn.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[images.ORIENTATION] = orientation
    path = tmp_path / "turned.png"
    stored.save(path, exif=exif)
    picture = images.read(str(path))
    assert (picture.width_px, picture.height_px) == (6, 4)
    assert np.array_equal(np.asarray(picture.image), np.asarray(upright))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_exif_block_leaves_the_picture_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "exif.jpg"
    red_blue().resize((16, 8)).save(path, exif=b"Exif\0\0MM\0*\0\0\0\xff\0\x01\x01\x12")
    assert images.read(str(path)).width_px == 16


def test_a_photograph_may_be_decoded_smaller_and_keeps_its_size_in_the_result(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    Image.new("RGB", (2000, 1000), RED).save(path)
    picture = images.read(str(path), least_px=200)
    assert (picture.width_px, picture.height_px) == (2000, 1000)
    assert picture.image.size == (500, 250)


def test_a_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = tmp_path / "bomb.png"
    for width, height in ((60000, 60000), (9000, 9000)):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
        assert f"the {images.PIXELS_LIMIT} pixels allowed" in refusal(path)


def test_an_error_page_with_a_pictures_name_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "page.jpg"
    path.write_text("<html>404</html>")
    assert refusal(path) == "not a picture of a known format"


def test_a_format_that_starts_programs_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "script.png"
    Image.new("RGB", (8, 8)).save(path, "EPS")  # Pillow would start Ghostscript for it
    assert refusal(path) == "not a picture of a known format"


def test_an_empty_file_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "empty.png"
    path.touch()
    assert refusal(path) == "not a picture of a known format"


def test_a_picture_cut_short_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(buffer, "JPEG")
    path.write_bytes(buffer.getvalue()[:900])
    assert "truncated" in refusal(path)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    assert refusal(path) == "not a regular file"


def test_a_missing_picture_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.png") == "No such file or directory"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_damaged_bytes_end_in_a_picture_or_a_sentence(tmp_path: Path, kind: str) -> None:
    buffer = io.BytesIO()
    noise = np.random.default_rng(3).integers(0, 255, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, kind)
    whole, chance, path = buffer.getvalue(), random.Random(kind), tmp_path / "damaged"
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(min(len(data), 400))] = chance.randrange(256)
        path.write_bytes(data[: chance.randint(1, len(data))] if chance.random() < 0.3 else data)
        try:
            assert images.read(str(path)).image.mode == "RGB"
        except images.UnreadablePicture:
            refused += 1
    assert refused > 0


# --- which files a run is about ---


def test_a_folder_gives_its_pictures_sorted_and_nothing_else(tmp_path: Path) -> None:
    names = [f"{number:02d}{'.PNG' if number % 2 else '.jpg'}" for number in range(20)]
    for name in (*names[::2], *names[1::2], "notes.md", ".hidden.png"):
        (tmp_path / name).touch()
    (tmp_path / "sub.png").mkdir()
    assert inputs.expand([str(tmp_path)]) == [str(tmp_path / name) for name in names]


def test_a_list_names_paths_relative_to_itself(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    listing.write_text("# comment\nsub/a.png\n\n/absolute/b.png\n")
    assert inputs.expand([str(listing)]) == [str(tmp_path / "sub/a.png"), "/absolute/b.png"]


def test_files_keep_their_order(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("z.png", "a.dat")]
    for path in paths:
        Path(path).touch()
    assert inputs.expand(paths) == paths


def test_what_names_no_picture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x80")
    (tmp_path / "none").mkdir()
    for path, words in (
        (tmp_path / "missing.png", "No such file"),
        (tmp_path / "none", "no picture in this folder"),
        (tmp_path / "empty.txt", "names no picture"),
        (tmp_path / "binary.txt", "not a text file"),
    ):
        with pytest.raises(RunnerError, match=words) as caught:
            inputs.expand([str(path)])
        assert str(path) in caught.value.reason
    with pytest.raises(RunnerError, match="no picture was named"):
        inputs.expand([])
