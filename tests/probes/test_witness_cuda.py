"""Who testifies to CUDA's checks, against FAKES of NVIDIA's libraries that do the work on the CPU.

What is proven is that each witness is asked and answers or says why not; nothing about a GPU.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from probes import tensorrt_engine
from probes.contract import DeviceKind, Finding, Status, WitnessKind
from probes.cudadriver import CudaDriver
from probes.host import Host
from tests.probes.test_cuda import ask, compile_c

HERE = Path(__file__).parent
FAKES = ("libcudart.so.13", "libnvrtc.so.13", "libcublas.so.13", "libcudnn.so.9")
API, COUNTERS, COMPARISON = WitnessKind.API, WitnessKind.COUNTERS, WitnessKind.COMPARISON


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fakes")
    compile_c(HERE / "fake_libcuda.c", folder / "libcuda.so.1")
    for name in FAKES:
        compile_c(HERE / "fake_cuda_libraries.c", folder / name)
    return folder


def spoken(finding: Finding) -> list[WitnessKind]:
    return [said.kind for said in finding.witnesses if said.spoke]


def check_counters(finding: Finding) -> None:
    """Each counter is asked by name, and says why it is silent: the fakes touch no GPU."""
    counters = {said.source: said for said in finding.witnesses if said.kind is COUNTERS}
    assert len(counters) == 4
    assert all(said.text for said in counters.values())
    if not Host().glob("/dev/nvidia0"):
        assert "libnvidia-ml.so.1" in counters["NVML processes"].text
        assert not any(said.spoke for said in counters.values())


@pytest.mark.parametrize(
    ("probe", "comparisons"), [("probes.cuda", 1), ("probes.cuda_runtime", 3), ("probes.cudnn", 1)]
)
def test_each_check_of_cuda_names_its_witnesses(fakes: Path, probe: str, comparisons: int) -> None:
    finding = ask(fakes, probe)
    assert (finding.status, finding.device_kind) == (Status.WORKS, DeviceKind.GPU), finding.reason
    assert spoken(finding) == [API] + [COMPARISON] * comparisons
    assert finding.witnesses[0].text == "Fake GPU 0 of a test by its own clock: 0.25 ms"
    assert all("the same answer" in said.text for said in finding.witnesses[-comparisons:])
    assert all("Fake GPU 0 of a test took 0.25 ms" in said.text for said in finding.witnesses[-comparisons:])
    check_counters(finding)


def test_a_wrong_sum_of_cudnn_has_no_witnesses(fakes: Path) -> None:
    finding = ask(fakes, "probes.cudnn", FAKE_CUDNN_WRONG=1)
    assert finding.status is Status.BROKEN
    assert finding.witnesses == ()


# TensorRT: FAKE bindings whose engine adds on the CPU.


class Thing:
    """What answers to any name: builder, network, layer, configuration, logger, runtime, engine and context."""

    __version__ = "10.3.0"
    num_DLA_cores = 2
    name = ""

    def __getattr__(self, name: str) -> Thing:
        return Thing()

    def __call__(self, *_: object) -> Thing:
        return Thing()

    def __int__(self) -> int:
        return 0


class Engine(Thing):
    """z = x + y at the addresses it is told."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}

    def create_execution_context(self) -> Engine:
        return self

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, _stream: object) -> bool:
        numbers = ctypes.c_float * tensorrt_engine.COUNT
        x, y, z = (numbers.from_address(self.addresses[name]) for name in "xyz")
        for index in range(tensorrt_engine.COUNT):
            z[index] = x[index] + y[index]
        return True


class Bindings(Thing):
    ILogger = Thing

    def Runtime(self, _logger: object) -> Thing:
        runtime = Thing()
        runtime.deserialize_cuda_engine = lambda plan: Engine()  # type: ignore[attr-defined]
        return runtime


def built(tmp_path: Path, dla_core: int | None) -> tensorrt_engine.Ran:
    path = compile_c((HERE / "fake_libcuda.c").read_text() + STREAM, tmp_path / "libcuda_with_streams.so")
    driver = CudaDriver(ctypes.CDLL(str(path)))
    driver.start()
    return tensorrt_engine.build_and_run(Host(), Bindings(), driver, driver.devices()[0], dla_core)


STREAM = "int cuStreamCreate(void **stream, unsigned flags) { *stream = (void *)0x500; return 0; }"


def test_an_engine_on_the_gpu_names_its_witnesses(tmp_path: Path) -> None:
    ran = built(tmp_path, None)
    assert ran.evidence.is_right, ran.reason
    kinds = [(said.kind, said.spoke) for said in ran.witnesses]
    assert (kinds[0], kinds[-1]) == ((API, True), (COMPARISON, True))
    assert [kind for kind, _ in kinds[1:-1]] == [COUNTERS] * 4


def test_counters_of_a_gpu_say_nothing_about_a_dla(tmp_path: Path) -> None:
    ran = built(tmp_path, 0)
    assert [(said.kind, said.spoke) for said in ran.witnesses] == [(API, True), (COUNTERS, False), (COMPARISON, True)]
    assert ran.witnesses[0].text.startswith("DLA core 0 of Fake GPU 0 of a test by its own clock")
    assert "an NPU did the work" in ran.witnesses[1].text
