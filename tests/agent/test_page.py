"""The page of a report: what it says, that hostile text stays text, and how a real Chromium shows it."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agent.page import write_report_page
from agent.page_stack import UNREADABLE
from probes.contract import (
    CapabilityReport,
    Device,
    DeviceIdentity,
    DeviceKind,
    Evidence,
    Finding,
    Status,
    Witness,
    WitnessKind,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE_PX = 390
HOSTILE = (
    "</pre></style><script>document.title='taken'</script><img src=x onerror=alert(1)>\"'&amp;\x1b[31m\u202e\x00\ud800"
)
LONG = "/usr/lib/aarch64-linux-gnu/" + "x" * 300
ORIN = Device(index=0, name="Orin (nvgpu)", kind=DeviceKind.GPU, driver="540.4.0", memory_bytes=8 << 30)


def report(text: str = LONG, evidence: str = "42") -> CapabilityReport:
    """A report with a finding of every status; `text` stands wherever a device or driver may put its words."""
    works = Finding(
        subject="vulkan",
        layer=2,
        status=Status.WORKS,
        version=text,
        devices=(ORIN, Device(index=1, name=text, kind=DeviceKind.CPU, vendor=text, api_version=text)),
        evidence=(
            Evidence(
                executed="saxpy",
                device=ORIN.name,
                device_kind=DeviceKind.GPU,
                value=evidence,
                expected=evidence,
                elapsed_s=0.002,
                timer="device",
            ),
            Evidence(executed="saxpy again", device=text, value=text, expected="7"),
        ),
        witnesses=(Witness(kind=WitnessKind.COUNTERS, source="devfreq load", spoke=False, text=f"no file {text}"),),
        facts={"driver_id": text, "memory_bytes": None, "cause": f"the cause {text}", "icd": ["a", "b"]},
        taken_at="2026-12-04T03:00:00Z",
        duration_s=0.5,
    )
    broken = Finding(subject="opencl", layer=2, status=Status.BROKEN, reason=f"why {text}", remedy=f"mend {text}")
    return CapabilityReport(
        device=DeviceIdentity(id="d", model=text, l4t="36.4.4"),
        taken_at="2026-12-04T06:00:00.000Z",
        clock_synchronised=True,
        agent_version="0",
        findings=(
            Finding(subject="hardware", layer=0, status=Status.WORKS),
            broken,
            works,
            Finding(subject="cuda", layer=2, status=Status.ABSENT, reason="no NVIDIA GPU"),
            Finding(subject="llama_cpp/cuda", layer=5, status=Status.UNKNOWN, reason="a recorded device"),
        ),
        fingerprint="0",
    )


def page(folder: Path, of: CapabilityReport) -> Path:
    path = folder / "report.html"
    write_report_page(path, of)
    return path


class Boxes(HTMLParser):
    """The text of each box by its id, what stands outside of its summary as well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.tags: set[str] = set()
        self._depth = 0
        self._box = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        if tag == "details":
            self._depth += 1
            if self._depth == 1:
                self._box = named["id"] or ""
                self.texts[self._box] = ""
                self.kinds[self._box] = (named["class"] or "").removeprefix("box ")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "details"

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.texts[self._box] += data


def test_every_finding_is_a_box_whose_state_is_told_without_colour(tmp_path: Path) -> None:
    boxes = Boxes(page(tmp_path, report()).read_text(encoding="utf-8"))
    assert boxes.kinds == {
        "hardware": "works",
        "opencl": "broken",
        "vulkan": "works",
        "cuda": "absent",
        "llama_cpp/cuda": "unknown",
    }
    signs = {subject: text.split()[0] for subject, text in boxes.texts.items()}
    assert signs == {"hardware": "✔", "opencl": "✘", "vulkan": "✔", "cuda": "–", "llama_cpp/cuda": "?"}
    assert "WORKS (gpu)" in boxes.texts["vulkan"]
    assert all(boxes.kinds[subject].upper() in text for subject, text in boxes.texts.items())


def test_a_box_tells_everything_that_is_known(tmp_path: Path) -> None:
    texts = Boxes(page(tmp_path, report("Mesa")).read_text(encoding="utf-8")).texts
    for part in (
        "because the cause Mesa",
        "version Mesa",
        "0: Orin (nvgpu) (gpu) 540.4.0 · 8.0 GiB",
        "saxpy on Orin (nvgpu) (gpu) in 2.0 ms by the device's clock ✔ the right answer",
        "✘ not the right answer",
        "counters – silent (devfreq load): no file Mesa",
        "memory_bytes unknown",
        "icd a, b",
        "taken 2026-12-04T03:00:00Z · 3 h before this report · took 500.0 ms",
    ):
        assert part in texts["vulkan"], texts["vulkan"]
    assert "why Mesa" in texts["opencl"]
    assert "→ what to do mend Mesa" in texts["opencl"]


def test_the_layers_stand_on_one_another_from_7_to_0(tmp_path: Path) -> None:
    text = page(tmp_path, report()).read_text(encoding="utf-8")
    assert re.findall(r'<span class="number">(\d)</span>', text) == list("76543210")
    assert text.index('id="llama_cpp/cuda"') < text.index('id="vulkan"') < text.index('id="hardware"')


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = page(tmp_path, report(HOSTILE)).read_text(encoding="utf-8")
    boxes = Boxes(text)
    assert not boxes.tags & {"script", "img", "iframe", "link", "object"}
    assert text.count("</style>") == 1
    assert "<script>document.title='taken'</script>" in boxes.texts["vulkan"]
    assert not UNREADABLE.search(text.replace("\n", ""))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = page(tmp_path, report("Mesa")).read_text(encoding="utf-8")
    assert not re.search(r"\b(src|href|url|@import)\b", text)
    assert "http" not in text


# ---- in a real browser ----------------------------------------------------------------------------------------------


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium headless on files alone, and return what it printed."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed: the page was seen in no browser")
    argv = [CHROMIUM, "--headless", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"]
    argv += [f"--user-data-dir={folder / 'chromium'}", "--allow-file-access-from-files", "--no-first-run"]
    if os.geteuid() == 0:
        argv.append("--no-sandbox")  # Chromium refuses to sandbox for root
    done = subprocess.run([*argv, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def complaints(stderr: str) -> list[str]:
    """What the page's console said. Chromium's own trouble, with D-Bus for example, has other source names."""
    return [line for line in stderr.splitlines() if "CONSOLE" in line]


def measured(folder: Path, shown: Path, *, opened: bool) -> tuple[int, int, str]:
    """The page in a frame as wide as a phone: its own width, its content's, and its title."""
    (folder / "frame.html").write_text(
        f'<!doctype html><iframe id=f src="{shown.name}" style="width:{PHONE_PX}px;height:800px;border:0"></iframe>'
        "<pre id=told></pre><script>onload=()=>{const d=f.contentDocument;"
        f"if({str(opened).lower()})d.querySelectorAll('details').forEach(x=>x.open=true);"
        "const e=d.documentElement;told.textContent=`${e.clientWidth} ${e.scrollWidth} ${d.title}`}</script>",
        encoding="utf-8",
    )
    done = chromium(folder, "--dump-dom", (folder / "frame.html").as_uri())
    assert complaints(done.stderr) == []
    told = re.search(r"<pre id=\"told\">(\d+) (\d+) ([^<]*)</pre>", done.stdout)
    assert told, done.stdout
    return int(told[1]), int(told[2]), html.unescape(told[3])


def test_chromium_shows_it_from_a_file_without_an_error(tmp_path: Path) -> None:
    done = chromium(tmp_path, "--dump-dom", page(tmp_path, report(HOSTILE)).as_uri())
    assert complaints(done.stderr) == []
    boxes = Boxes(done.stdout)
    assert sorted(boxes.kinds) == ["cuda", "hardware", "llama_cpp/cuda", "opencl", "vulkan"]
    assert not boxes.tags & {"script", "img"}


def test_an_error_of_a_script_would_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<!doctype html><script>nothing.of.that.name()</script>")
    assert complaints(chromium(tmp_path, "--dump-dom", path.as_uri()).stderr)


@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened"])
@pytest.mark.parametrize("text", [LONG, HOSTILE], ids=["long", "hostile"])
def test_a_phone_need_not_scroll_sideways(tmp_path: Path, text: str, opened: bool) -> None:
    width, content, title = measured(tmp_path, page(tmp_path, report(text)), opened=opened)
    assert (width, content) == (PHONE_PX, PHONE_PX)
    assert title.endswith("edge-agent")


@pytest.mark.parametrize("width", [1280, PHONE_PX])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_seen_in_colours_on_desktop_and_phone(tmp_path: Path, width: int, scheme: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: no screenshot was looked at")
    shot = tmp_path / "shot.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    target = page(tmp_path, report("Mesa")).as_uri()
    chromium(tmp_path, *dark, f"--window-size={width},1600", f"--screenshot={shot}", target)
    with image.open(shot) as picture:
        assert picture.size == (width, 1600)
        pixels = picture.convert("RGB")
        assert (sum(pixels.getpixel((2, 2))) > 600) == (scheme == "light")
        seen = {colour for count, colour in pixels.getcolors(1 << 24) if count > 200}
    green = [c for c in seen if c[1] > max(c[0], c[2]) + 40]
    red = [c for c in seen if c[0] > max(c[1], c[2]) + 60]
    assert green, seen
    assert red, seen


def test_on_paper_all_boxes_are_open(tmp_path: Path) -> None:
    def pages(of: CapabilityReport) -> int:
        pdf = tmp_path / "page.pdf"
        chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page(tmp_path, of).as_uri())
        return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))

    assert pages(report("Mesa", evidence="line\n" * 400)) > pages(report("Mesa")) + 4
