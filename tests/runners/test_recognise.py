"""What a file is, by its content: models, and all that gets saved under a model's name."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import socket
import struct
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from model_files import LLAMA, MODELS, gguf

from runners.contract import ModelRejected
from runners.inspect import inspect


def rejection(path: Path | str) -> ModelRejected:
    with pytest.raises(ModelRejected) as caught:
        inspect(str(path))
    return caught.value


def zipped(*names: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return data.getvalue()


def tarred() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.gguf"))
    return data.getvalue()


SAFETENSORS = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
CONTENTS = {  # what is said -> content
    "gzip archive": gzip.compress(b"GGUF"),
    "zip archive": zipped("model.gguf"),
    "tar archive": tarred(),
    "refused for safety": zipped("archive/data.pkl", "archive/data/0"),
    "executes code": pickle.dumps({"state_dict": [1, 2, 3]}),
    "MediaPipe bundle": zipped("TF_LITE_PREFILL_DECODE", "TOKENIZER_MODEL"),
    "safetensors file": struct.pack("<Q", len(SAFETENSORS)) + SAFETENSORS + bytes(4),
    "TensorFlow Lite file": b"\x1c\0\0\0TFL3" + bytes(64),
    "ONNX Runtime file (.ort)": b"\x1c\0\0\0ORTM" + bytes(64),
    "LiteRT-LM bundle": b"LITERTLM" + bytes(64),
    "TensorRT engine": b"ftrt" + bytes(64),
    "ncnn graph (.param)": b"7767517\n3 3\nInput data 0 1 data\n",
    "ncnn graph (.param.bin)": b"\xdd\x85\x76\x00" + bytes(64),
    "older than GGUF": b"tjgg\x03\0\0\0" + bytes(64),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "PNG picture": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "'Repository not found'": b'{"error":"Repository not found"}',
    "'AccessDenied'": b"<?xml version='1.0'?>\n<Error><Code>AccessDenied</Code></Error>",
    "begins with 'Invalid username or password.'": b"Invalid username or password.",
    "HTML page": b"\n  <html lang=en><head>",
    "zeros only": bytes(4096),
    "the first ff fe fd": b"\xff\xfe\xfd\xfc\x00\x01",
}


@pytest.mark.parametrize(("told", "content"), CONTENTS.items(), ids=list(CONTENTS))
@pytest.mark.parametrize("name", ["model.gguf", "model.onnx"])
def test_what_is_no_model_is_named_for_what_it_is(tmp_path: Path, name: str, told: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert told in rejection(tmp_path / name).reason


def test_a_web_page_is_told_with_the_wrong_download() -> None:
    error = rejection(MODELS / "MF-01" / "model.Q4_0.gguf")
    assert "HTML" in error.reason
    assert "download" in error.reason
    assert "/resolve/" in error.remedy


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("llama-2-13b.Q2_K.gguf", 5429348224),
        ("model-00001-of-00002.safetensors", 9976576152),
        ("decoder.onnx", 614400123),
        ("detect.tflite", 4276352),
    ],
)
def test_an_lfs_pointer_of_any_extension_tells_the_real_size(name: str, size_bytes: int) -> None:
    error = rejection(MODELS / "MF-03" / name)
    assert "git-LFS pointer" in error.reason
    assert str(size_bytes) in error.reason
    assert "oid sha256:" in error.reason
    assert "git lfs pull" in error.remedy


def test_a_renamed_onnx_file_is_onnx() -> None:
    assert inspect(str(MODELS / "MF-40" / "onnx-renamed.engine")).format == "onnx"


@pytest.mark.parametrize("name", ["bare", "wrapped"])
def test_an_engine_is_called_one(name: str) -> None:
    assert "TensorRT engine" in rejection(MODELS / "MF-40" / f"{name}.engine").reason


def test_a_gguf_file_of_another_name_is_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(gguf(LLAMA))
    assert inspect(str(tmp_path / "model.bin")).format == "gguf"


def test_an_extension_counts_where_the_content_leaves_it_open(tmp_path: Path) -> None:
    (tmp_path / "llm.mnn").write_bytes(b"\x24\0\0\0\0\0\0\0\x1c\0\x24\0")
    assert "MNN" in rejection(tmp_path / "llm.mnn").reason


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert "is empty" in rejection(tmp_path / "a.gguf").reason


def test_a_missing_file_and_a_dangling_link_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to("gone.gguf")
    assert "no such file" in rejection(tmp_path / "none.gguf").reason
    assert "link to gone.gguf" in rejection(tmp_path / "link.gguf").reason


def test_a_link_to_a_model_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(gguf(LLAMA))
    (tmp_path / "link.gguf").symlink_to("real")
    assert inspect(str(tmp_path / "link.gguf")).name == "little"


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    assert "is a folder" in rejection(tmp_path).reason


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.gguf")
    start_s = time.monotonic()
    assert "named pipe" in rejection(tmp_path / "a.gguf").reason
    assert time.monotonic() - start_s < 1


def test_a_device_and_a_socket_are_refused(tmp_path: Path) -> None:
    assert "character device" in rejection("/dev/zero").reason
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert "socket" in rejection(tmp_path / "s").reason


def test_a_file_that_may_not_be_read_tells_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(LLAMA))
    path.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root reads everything
        error = rejection(path)
    finally:
        os.seteuid(user)
    assert "can't be read by this user" in error.reason
    assert "chmod" in error.remedy


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "/dev/null/model.gguf"])
def test_a_path_that_can_not_be_is_a_rejection(path: str) -> None:
    assert rejection(path).reason
