"""A dpkg database in a folder of its own, made by the real dpkg from packages that are built here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

FAILS = "#!/bin/sh\nexit 1\n"


class Dpkg:
    """The database below `root`; nothing outside of that folder is changed."""

    def __init__(self, root: Path, workshop: Path) -> None:
        self.root = root
        self._workshop = workshop
        for folder in ("info", "updates", "triggers"):
            (root / "var/lib/dpkg" / folder).mkdir(parents=True)
        for file in ("status", "available"):
            (root / "var/lib/dpkg" / file).touch()

    def argv(self, *arguments: str) -> list[str]:
        """The command line of a dpkg that works on this database."""
        options = ["--force-not-root", "--force-script-chrootless", "--force-bad-path", "--log=/dev/null"]
        return ["dpkg", f"--root={self.root}", *options, *arguments]

    def run(self, *arguments: str, stdin: str = "") -> str:
        """What dpkg said, whether it failed or not."""
        done = subprocess.run(
            self.argv(*arguments), input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def build(self, name: str, version: str = "1.0", control: str = "", files: Mapping[str, str] | None = None) -> str:
        """The path of a package with these control files ("postinst", "triggers", ...) and no others."""
        folder = self._workshop / f"{name}-{version}"
        (folder / "DEBIAN").mkdir(parents=True)
        fields = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: t <t@t>\nDescription: test\n"
        (folder / "DEBIAN/control").write_text(fields + control)
        for file, text in (files or {}).items():
            place = folder / ("DEBIAN" if "/" not in file else ".") / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o755)
        package = f"{folder}.deb"
        subprocess.run(["dpkg-deb", "-b", "--root-owner-group", folder, package], check=True, capture_output=True)
        return package


def make(tmp_path: Path) -> Dpkg:
    """An empty database; skips loudly where there is no dpkg."""
    if not (shutil.which("dpkg") and shutil.which("dpkg-deb")):
        pytest.skip("dpkg is not installed: no package was broken by dpkg itself")
    return Dpkg(tmp_path / "root", tmp_path / "workshop")
