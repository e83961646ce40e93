"""Where a Jetson's system differs from what its release came with, what that means, and what to do about it.

Many differences are meant: an upgraded CUDA with its cuda-compat, an own build of OpenCV, a container's own userland.
They are told, and no remedy is given. What is not known on either side is not compared.

Source: `jetpack_releases.json`; CUDA's errors 35 and 222 on L4T: EricLBuehler/mistral.rs#867, pytorch/pytorch#139210.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from probes import jetpack_releases
from probes.jetpack_meaning import BRING, FINISH, Difference, Meaning
from probes.jetpack_parts import Parts
from probes.jetpack_releases import Release, ReleaseTable, agrees, numbers

SONAMES = {"cudnn": "libcudnn.so", "tensorrt": "libnvinfer.so", "vpi": "libnvvpi.so"}
IMAGE_PARTS = ("ubuntu", "python", "cuda", "cudnn", "tensorrt", "vpi", "opencv")  # a container brings its own


def compare(parts: Parts, row: Release, table: ReleaseTable, in_container: bool) -> tuple[Difference, ...]:
    """All differences of a system from its release, in the order of `LABELS`.

    Args:
        parts: what was found.
        row: the release by L4T's own file; in a container that is the host's.
        table: all releases: they tell whose a version is.
        in_container: everything but the kernel is the image's own then; of CUDA is asked what the host's driver takes.
    """
    parts = _numbered(parts)
    found = [*_kernel(parts, row, table)]
    if in_container:
        return (*found, *_image(parts, row, table))
    cuda = next(_cuda(parts, row, table), None)
    allowed = cuda is not None and cuda.meaning is Meaning.UPGRADED
    libraries = (
        difference
        for component in SONAMES
        for difference in _library(component, getattr(parts, component), row, table, allowed)
    )
    return (
        *_ubuntu(parts, row),
        *found,
        *_python(parts, row),
        *([cuda] if cuda else ()),
        *libraries,
        *_opencv(parts, row),
    )


def _numbered(parts: Parts) -> Parts:
    """`parts` without what begins with no number: it is no version, and is not compared."""
    fields = msgspec.structs.asdict(parts)
    for name, value in fields.items():
        if isinstance(value, tuple):
            fields[name] = tuple(one for one in value if numbers(one))
        elif name != "distribution" and value is not None and not numbers(value):
            fields[name] = None
    return Parts(**fields)


def compare_package(package: str | None, row: Release) -> Iterator[Difference]:
    """Whether the package nvidia-jetpack is this release's; "6.2.1+b38" is of 6.2.1."""
    if package and row.jetpack and numbers(package) and numbers(package) != numbers(row.jetpack):
        yield Difference(
            component="jetpack",
            found=package,
            expected=row.jetpack,
            meaning=Meaning.HALF_UPGRADED,
            why="L4T and the packages above it are of two releases",
            remedy=FINISH,
        )


def _image(parts: Parts, row: Release, table: ReleaseTable) -> Iterator[Difference]:
    """A container's own parts; only a CUDA that the host's driver can't serve has a remedy."""
    cuda = next(_cuda(parts, row, table), None)
    for component in IMAGE_PARTS:
        found, expected = getattr(parts, component), getattr(row, component)
        if component == "cuda" and cuda and cuda.meaning in (Meaning.NEEDS_COMPAT, Meaning.WRONG_RELEASE):
            remedy = "use an image that was made for this L4T, or one with that cuda-compat"
            yield msgspec.structs.replace(cuda, remedy=remedy)
            continue
        those = (found,) if isinstance(found, str) else found or ()
        if expected and those and not any(_same(component, one, expected) for one in those):
            yield Difference(
                component=component,
                found=", ".join(those),
                expected=expected,
                meaning=Meaning.CONTAINER,
                why="it is the container's own",
            )


def _same(component: str, found: str, expected: str) -> bool:
    if component == "cuda":  # the toolkit has a third number, the release has not
        return numbers(found)[:2] == numbers(expected)[:2]
    return agrees(found, expected)


def _ubuntu(parts: Parts, row: Release) -> Iterator[Difference]:
    if parts.ubuntu and row.ubuntu and parts.ubuntu != row.ubuntu:
        yield Difference(
            component="ubuntu",
            found=parts.ubuntu,
            expected=row.ubuntu,
            meaning=Meaning.WRONG_RELEASE,
            why="L4T's packages and wheels are made for that one only",
            remedy=f"flash {row.name} again, and take a newer Ubuntu in a container",
        )


def _kernel(parts: Parts, row: Release, table: ReleaseTable) -> Iterator[Difference]:
    """By the numbers alone: the text behind them is the builder's."""
    if not parts.kernel or not row.kernel or agrees(parts.kernel, row.kernel):
        return
    whose = _kernel_of(parts.kernel, row, table) if parts.kernel.endswith("-tegra") else ""
    half = bool(whose)
    yield Difference(
        component="kernel",
        found=parts.kernel,
        expected=row.kernel,
        meaning=Meaning.HALF_UPGRADED if half else Meaning.OWN,
        why=f"it is {whose}'s" if half else "another build; L4T's drivers must be built for it too",
        remedy=FINISH if half else "",
    )


def _kernel_of(kernel: str, row: Release, table: ReleaseTable) -> str:
    """The release whose kernel this is, by three numbers: "L4T 36.5.0"; by two "JetPack 5"; "" for none."""
    exact = [
        other.name
        for other in table.releases
        if len(numbers(other.kernel or "")) > 2 and agrees(kernel, other.kernel or "")
    ]
    if exact:
        return exact[0]
    if numbers(kernel)[:2] == numbers(row.kernel or "")[:2]:
        return ""  # several releases share these, and no source tells the third number of each
    families = (
        jetpack_releases.family(other.l4t, table) for other in table.releases if agrees(kernel, other.kernel or "")
    )
    return next((f"JetPack {number}" for number in families if number), "")


def _python(parts: Parts, row: Release) -> Iterator[Difference]:
    if not parts.python or not row.python or parts.python == row.python:
        return
    with_ubuntu = bool(parts.ubuntu and row.ubuntu and parts.ubuntu != row.ubuntu)
    yield Difference(
        component="python",
        found=parts.python,
        expected=row.python,
        meaning=Meaning.WRONG_RELEASE,
        why="it comes with the other Ubuntu"
        if with_ubuntu
        else "/usr/bin/python3 leads to it, and TensorRT's bindings and apt's own programs are for the other",
        remedy=""
        if with_ubuntu
        else f"sudo ln -sf python{row.python} /usr/bin/python3, and use the other in a virtual environment",
    )


def _cuda(parts: Parts, row: Release, table: ReleaseTable) -> Iterator[Difference]:
    """A newer CUDA is allowed on JetPack 5 and 6 as far as a cuda-compat reaches, when that is there."""
    found, expected = numbers(parts.cuda or "")[:2], numbers(row.cuda or "")[:2]
    if len(found) < 2 or len(expected) < 2 or found == expected:
        return
    if found < expected:
        whose = _whose("cuda", parts.cuda or "", row, table)
        meaning, why, remedy = (
            Meaning.HALF_UPGRADED,
            "the driver takes it, this release's libraries want the other",
            BRING,
        )
        why += f"; it is {whose}'s" if whose else ""
    else:
        meaning, why, remedy = _judge_newer_cuda(found, expected, parts, row, table)
    yield Difference(
        component="cuda",
        found=parts.cuda or "",
        expected=row.cuda or "",
        meaning=meaning,
        why=why,
        remedy=remedy,
    )


def _judge_newer_cuda(
    found: tuple[int, ...], expected: tuple[int, ...], parts: Parts, row: Release, table: ReleaseTable
) -> tuple[Meaning, str, str]:
    family = jetpack_releases.family(row.l4t, table) or ""
    limit = table.cuda_compat.get(family)
    package = f"cuda-compat-{found[0]}-{found[1]}"
    if any(numbers(one) >= found for one in parts.cuda_compat) and (limit is None or found <= numbers(limit)):
        return Meaning.UPGRADED, "an upgrade that is meant: its cuda-compat is there", ""
    if limit and found > numbers(limit):
        why = f"with cuda-compat this driver serves CUDA {limit} at most"
        return Meaning.WRONG_RELEASE, why, f"install CUDA {limit} or older with its cuda-compat, or a newer JetPack"
    if family == "4":
        why = "JetPack 4 has no cuda-compat, and its driver changes only with L4T"
        return Meaning.WRONG_RELEASE, why, f"use CUDA {row.cuda}, or a newer JetPack where the module has one"
    why = f"{package} is not there, without which the driver takes no newer major (error 35)"
    if found[0] == expected[0]:
        why = f"{package} is not there, without which the driver takes no PTX of a newer CUDA (error 222)"
    return Meaning.NEEDS_COMPAT, why, f"sudo apt install {package}"


def _library(
    component: str, found: tuple[str, ...], row: Release, table: ReleaseTable, cuda_upgraded: bool
) -> Iterator[Difference]:
    """cuDNN, TensorRT or VPI: one of the versions that are there must be the release's."""
    expected: str | None = getattr(row, component)
    if not expected or not found or any(agrees(one, expected) for one in found):
        return
    newest = found[-1]
    meaning, why, remedy = _judge_library(component, newest, expected, row, table, cuda_upgraded)
    yield Difference(
        component=component,
        found=", ".join(found),
        expected=expected,
        meaning=meaning,
        why=why,
        remedy=remedy,
    )


def _judge_library(
    component: str, found: str, expected: str, row: Release, table: ReleaseTable, cuda_upgraded: bool
) -> tuple[Meaning, str, str]:
    whose = _whose(component, found, row, table)
    of_whom = f"; it is {whose}'s" if whose else ""
    major = numbers(expected)[0]
    if numbers(found)[0] != major:
        why = f"programs for {row.name} look for {SONAMES[component]}.{major}{of_whom}"
        return Meaning.WRONG_RELEASE, why, BRING
    if numbers(found) < numbers(expected):
        return Meaning.HALF_UPGRADED, f"older than the release's{of_whom}", BRING
    if whose and not cuda_upgraded:
        same = _family_of(whose, table) == jetpack_releases.family(row.l4t, table)
        meaning, remedy = (Meaning.HALF_UPGRADED, FINISH) if same else (Meaning.WRONG_RELEASE, BRING)
        return meaning, f"it is {whose}'s, L4T is not", remedy
    why = "newer of the same major, which serves the same programs"
    return Meaning.UPGRADED, why + ("; engines must be built again" if component == "tensorrt" else ""), ""


def _opencv(parts: Parts, row: Release) -> Iterator[Difference]:
    if row.opencv and parts.opencv and not any(agrees(one, row.opencv) for one in parts.opencv):
        build = "Ubuntu's own build" if parts.opencv[-1].endswith("d") else "another build, made by hand or by a vendor"
        yield Difference(
            component="opencv",
            found=", ".join(parts.opencv),
            expected=row.opencv,
            meaning=Meaning.OWN,
            why=build,
        )


def _whose(component: str, found: str, row: Release, table: ReleaseTable) -> str:
    """The release nearest to `row` that came with what was found: "JetPack 6.0"; "" for none."""
    place = table.releases.index(row)
    having = [
        (abs(index - place), other)
        for index, other in enumerate(table.releases)
        if (version := getattr(other, component)) and len(numbers(found)) > 1 and _same(component, found, version)
    ]
    return min(having, key=lambda pair: pair[0])[1].name if having else ""


def _family_of(name: str, table: ReleaseTable) -> str | None:
    return next((jetpack_releases.family(row.l4t, table) for row in table.releases if row.name == name), None)
