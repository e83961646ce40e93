"""What a file is, from its first bytes; its extension is only asked when the bytes leave it open."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from runners.contract import ModelRejected

HEAD_BYTES = 4096  # what `recognise` wants to see
EXCERPT = 120
DAMAGED = "download or copy the file again, and compare its size and checksum"

LFS = re.compile(rb"\Aversion https?://\S+\n(?:.*\n)*?oid (\S+)\n(?:.*\n)*?size (\d+)")
SENTENCES = (  # fields with the reason in XML and JSON error pages of file servers
    re.compile(r"<(?:Message|Code)>([^<]+)<"),
    re.compile(r'"(?:error|message|detail)"\s*:\s*"([^"]+)"'),
)


class Kind(NamedTuple):
    """A kind of file that is no model to be run here: how it is called, and what to do instead."""

    name: str
    remedy: str


UNPACK = "unpack it, and name the model file inside of it"
PICKLE = Kind(
    "a Python pickle, as PyTorch writes: reading one executes code in it, so it is refused for safety",
    "export the model to ONNX or GGUF on the machine where it was trained",
)
OLD_GGML = Kind(
    "a model in a GGML format older than GGUF", "convert it with a current llama.cpp, or download a GGUF file"
)
NO_RUNNER = "there is no runner for it in this version: convert the model to GGUF (language) or ONNX"
NOT_A_MODEL = "name a model file: .gguf or .onnx"

# (offset, bytes, kind); the first that fits counts
MAGIC = (
    (0, b"\x1f\x8b", Kind("a gzip archive", UNPACK)),
    (0, b"\xfd7zXZ\x00", Kind("an xz archive", UNPACK)),
    (0, b"BZh", Kind("a bzip2 archive", UNPACK)),
    (0, b"\x28\xb5\x2f\xfd", Kind("a Zstandard archive", UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", Kind("a 7-Zip archive", UNPACK)),
    (0, b"Rar!\x1a\x07", Kind("a RAR archive", UNPACK)),
    (257, b"ustar", Kind("a tar archive", UNPACK)),
    (4, b"TFL3", Kind("a TensorFlow Lite file (.tflite)", NO_RUNNER)),
    (4, b"ORTM", Kind("an ONNX Runtime file (.ort)", "name the .onnx file that it was made from")),
    (0, b"LITERTLM", Kind("a LiteRT-LM bundle (.litertlm)", NO_RUNNER)),
    (0, b"ftrt", Kind("a TensorRT engine", "name the .onnx file that it was built from")),
    (0, b"7767517\n", Kind("an ncnn graph (.param)", NO_RUNNER)),
    (0, b"\xdd\x85\x76\x00", Kind("an ncnn graph (.param.bin)", NO_RUNNER)),
    (0, b"tjgg", OLD_GGML),
    (0, b"fmgg", OLD_GGML),
    (0, b"lmgg", OLD_GGML),
    (0, b"algg", OLD_GGML),
    (0, b"\x89HDF\r\n", Kind("an HDF5 file, as Keras writes", NO_RUNNER)),
    (0, b"\x89PNG", Kind("a PNG picture", NOT_A_MODEL)),
    (0, b"\xff\xd8\xff", Kind("a JPEG picture", NOT_A_MODEL)),
    (0, b"%PDF", Kind("a PDF document", NOT_A_MODEL)),
    (0, b"\x7fELF", Kind("a program or library (ELF)", NOT_A_MODEL)),
    (0, b"SQLite format 3", Kind("an SQLite database", NOT_A_MODEL)),
)
BY_EXTENSION = {  # formats without a magic number
    ".mnn": Kind("by its name an MNN file", NO_RUNNER),
    ".bin": Kind("weights without a description (.bin)", "name the model file that they belong to"),
    ".pb": Kind("by its name a TensorFlow graph", NO_RUNNER),
}
# Fields of ONNX's ModelProto: number -> wire type. Source: onnx/onnx.proto of onnx 1.19
ONNX_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}


def recognise(name: str, size_bytes: int, head: bytes) -> str:
    """The format of a model file that can be read here.

    Args:
        name: path, for messages; its extension is asked last.
        size_bytes: of the whole file.
        head: its first `HEAD_BYTES` bytes, or all of a shorter file.

    Returns: "gguf" or "onnx".

    Raises:
        ModelRejected: it is something else; the sentence says what.
    """
    if not size_bytes:
        raise ModelRejected(f"{name} is empty (0 bytes): it is truncated, or was never written", DAMAGED)
    if head.startswith(b"GGUF"):
        return "gguf"
    _reject_pointer(name, size_bytes, head)
    kind = _by_magic(head) or _by_structure(size_bytes, head)
    if kind:
        raise ModelRejected(f"{name} is {kind.name}", kind.remedy)
    if not head.strip(b"\0"):
        raise ModelRejected(f"{name} begins with zeros only: its download or copy did not end", DAMAGED)
    _reject_text(name, head)
    if looks_like_onnx(size_bytes, head):
        return "onnx"
    kind = BY_EXTENSION.get(PurePath(name).suffix.lower())
    if kind:
        raise ModelRejected(f"{name} is {kind.name}", kind.remedy)
    first = head[:8].hex(" ")
    raise ModelRejected(
        f"{name} is no model that is known here: it is {size_bytes} bytes, the first {first}", NOT_A_MODEL
    )


def lfs_pointer(head: bytes) -> tuple[str, int] | None:
    """Object id and real size in bytes that a git-LFS pointer names, or None when it is none."""
    found = LFS.match(head[:1024])
    return (found[1].decode("ascii", "replace"), int(found[2][:20])) if found else None


def looks_like_onnx(size_bytes: int, head: bytes) -> bool:
    """Whether the bytes go on like an ONNX model: known fields, of the right wire types, up to the end of `head`."""
    position = 0
    while position < len(head):
        number, wire = head[position] >> 3, head[position] & 7
        position += 1
        if head[position - 1] & 0x80:  # fields 16 and up take two bytes
            number = (number & 15) | (head[position] << 4) if position < len(head) else 20
            position += 1
        if ONNX_FIELDS.get(number) != wire:
            return False
        value, position = _varint(head, position)
        position += value if wire == 2 else 0
        if position > size_bytes:  # cut inside of the graph: its reader will say what is missing
            return number == 7
    return True


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    return value, position


def _reject_pointer(name: str, size_bytes: int, head: bytes) -> None:
    pointer = lfs_pointer(head)
    if pointer:
        raise ModelRejected(
            f"{name} is a git-LFS pointer, not the model: its {pointer[1]} bytes were not fetched (oid {pointer[0]}; "
            f"here are {size_bytes} bytes)",
            "run git lfs pull in its repository, or download the file itself",
        )


def _by_magic(head: bytes) -> Kind | None:
    for offset, magic, kind in MAGIC:
        if head.startswith(magic, offset):
            return kind
    return None


def _by_structure(size_bytes: int, head: bytes) -> Kind | None:
    """Kinds that take a closer look than a magic number."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        if b"/data.pkl" in head or b"data.pkl" in head[:64]:
            return PICKLE
        if b"TF_LITE" in head or b".tflite" in head:
            return Kind("a MediaPipe bundle (.task)", NO_RUNNER)
        return Kind("a zip archive", UNPACK)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and head[2:3] in b"\x95}]c(Xq\x8a\x80":
        return PICKLE
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= min(size_bytes, 100 << 20):
        return Kind("a safetensors file", NO_RUNNER)
    length = int.from_bytes(head[:4], "little")
    if head[4:5] == b"{" and 2 <= length < 1 << 24:
        return Kind(
            "a TensorRT engine behind a description (as Ultralytics writes)",
            "name the .onnx file that it was built from",
        )
    return None


def _reject_text(name: str, head: bytes) -> None:
    """Refuse what is readable: pages and answers of servers that were saved instead of a file."""
    text = _as_text(head)
    if text is None:
        return
    beginning = text.lstrip("\ufeff \t\r\n")[:512].lower()
    again = "download the file itself: on a model hub the URL with /resolve/ (or the raw one) in place of /blob/"
    if beginning.startswith(("<!doctype html", "<html", "<head", "<!--", "<script")) or "<html" in beginning:
        raise ModelRejected(
            f"{name} is an HTML page (a web page), not a model: a download went to a viewer page", again
        )
    said = next((found[1] for found in (known.search(text) for known in SENTENCES) if found), "")
    if beginning.startswith(("<?xml", "<error")) or (beginning.startswith("{") and said):
        kind = "JSON" if beginning.startswith("{") else "XML"
        told = f": it says {said[:EXCERPT]!r}" if said else ""
        raise ModelRejected(
            f"{name} is {kind} text from a server, not a model{told}", "log in if need be, and " + again
        )
    excerpt = " ".join(text.split())[:EXCERPT]
    raise ModelRejected(
        f"{name} is a text file, not a model; it begins with {excerpt!r}",
        f"{NOT_A_MODEL}; if it was downloaded as one, the URL was wrong",
    )


def _as_text(head: bytes) -> str | None:
    if any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in head[:1024]):
        return None
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", "replace")
    for cut in range(4):  # the head may end inside of a character
        try:
            return head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return None
