"""What names of pictures mean: files, folders and lists, also in odd spellings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runners.contract import RunnerError
from runners.vision.inputs import expand


def test_a_list_that_windows_wrote_names_its_first_picture_too(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfa.png\r\nb.png\r\n")
    assert expand([str(tmp_path / "list.txt")]) == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").touch()
    monkeypatch.chdir(tmp_path)
    assert expand(["."]) == ["a.png"]
    with pytest.raises(RunnerError, match="empty name"):
        expand([""])


def test_a_name_that_is_no_utf8_is_refused_with_the_remedy(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.png")).touch()
    with pytest.raises(RunnerError, match="no UTF-8") as caught:
        expand([str(tmp_path)])
    assert caught.value.remedy == "rename the file"
