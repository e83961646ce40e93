"""What llama.cpp's load log proves, on captured logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.contract import DeviceKind
from runners.llama_log import LoadLog, device_kind, device_of, fallback, placement

LOGS = Path(__file__).parent.parent / "fixtures" / "llama_cpp"
MIB = 1024 * 1024


def read(name: str) -> LoadLog:
    log = LoadLog()
    log.feed((LOGS / name).read_text())
    return log


def test_a_cpu_log_puts_all_layers_and_the_output_layer_on_the_cpu() -> None:
    found = placement(read("smollm2-cpu.log"), {"CPU": DeviceKind.CPU})
    assert [(part.device, part.layers) for part in found.parts] == [("CPU", 31)]
    assert found.all_on(DeviceKind.CPU)
    assert not found.all_on(DeviceKind.GPU)


def test_the_bytes_of_a_device_are_its_weights_kv_cache_outputs_and_compute_buffers() -> None:
    (part,) = placement(read("smollm2-cpu.log"), {}).parts
    assert part.bytes == pytest.approx((92.10 + 0.19 + 5.62 + 49.13) * MIB, rel=1e-6)


def test_an_orin_log_puts_all_layers_on_the_gpu_though_the_embedding_stays_on_the_host() -> None:
    found = placement(read("qwen3-orin-cuda.log"), {})
    gpu, host = found.parts
    assert (gpu.device, gpu.device_kind, gpu.layers) == ("CUDA0", DeviceKind.GPU, 3)
    assert gpu.bytes == pytest.approx((1050.43 + 448 + 300.75) * MIB, rel=1e-6)
    assert (host.device, host.device_kind, host.layers) == ("CPU", DeviceKind.CPU, 0)
    assert host.bytes == pytest.approx((166.92 + 16.01) * MIB, rel=1e-6)
    assert found.all_on(DeviceKind.GPU)


def test_lavapipe_is_a_cpu_although_it_appears_as_a_vulkan_device() -> None:
    found = placement(read("gemma3-lavapipe.log"), {})
    assert found.parts[0].device == "Vulkan0"
    assert found.parts[0].layers == 3
    assert found.all_on(DeviceKind.CPU)
    assert not found.all_on(DeviceKind.GPU)


def test_offloaded_to_gpu_is_not_believed_when_the_layers_are_on_the_cpu() -> None:
    log = read("gemma3-no-device.log")
    assert "offloaded 19/19 layers to GPU" in log.tail(40)
    assert placement(log, {}).all_on(DeviceKind.CPU)


def test_a_log_without_layer_lines_proves_nothing() -> None:
    log = LoadLog()
    log.feed("load_tensors: offloaded 31/31 layers to GPU\nload_tensors: CUDA0 model buffer size = 65.16 MiB\n")
    found = placement(log, {})
    assert found.parts == ()
    assert not found.all_on(DeviceKind.GPU)


def test_a_log_may_be_cut_anywhere() -> None:
    whole, cut = read("qwen3-orin-cuda.log"), LoadLog()
    for character in (LOGS / "qwen3-orin-cuda.log").read_text():
        cut.feed(character)
    assert placement(cut, {}) == placement(whole, {})


def test_a_compute_buffer_that_is_made_again_is_not_counted_twice() -> None:
    log = read("qwen3-orin-cuda.log")
    log.feed("sched_reserve:      CUDA0 compute buffer size =   300.75 MiB\n")
    assert placement(log, {}) == placement(read("qwen3-orin-cuda.log"), {})


def test_a_split_model_shows_both_devices_largest_share_first() -> None:
    log = LoadLog()
    log.feed("load_tensors: layer 0 assigned to device CPU, is_swa = 0\n")
    log.feed("".join(f"load_tensors: layer {n} assigned to device CUDA0, is_swa = 0\n" for n in (1, 2)))
    found = placement(log, {})
    assert [(part.device, part.layers) for part in found.parts] == [("CUDA0", 2), ("CPU", 1)]
    assert not found.all_on(DeviceKind.GPU)


def test_a_tensor_that_the_gpu_cannot_hold_is_noticed_but_not_one_of_the_host() -> None:
    log = LoadLog()
    line = "done: tensor '{}' (q4_K) (and 3 others) cannot be used with preferred buffer type {}, using CPU instead\n"
    log.feed(line.format("token_embd.weight", "CPU_AARCH64"))
    assert log.misplaced == {}
    log.feed(line.format("blk.0.ffn_up.weight", "CUDA0"))
    assert log.misplaced == {"blk.0.ffn_up.weight": "CPU"}


@pytest.mark.parametrize(
    "line",
    [
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096 MiB: cudaMalloc failed: out of memory",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 4294967296",
        "ggml_vulkan: memory allocation of size 1073741824 failed. vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 65536.00 MB)",
    ],
)
def test_lines_of_memory_that_ran_out_are_recognised(line: str) -> None:
    log = LoadLog()
    log.feed(line + "\n")
    assert log.memory_line == line


def test_the_number_of_graph_splits_is_read_in_both_spellings() -> None:
    assert read("qwen3-orin-cuda.log").graph_splits == 2
    assert read("smollm2-cpu.log").graph_splits == 1


def test_debug_lines_prove_but_do_not_fill_the_tail() -> None:
    log = LoadLog()
    log.feed("load_tensors: layer 0 assigned to device CPU, is_swa = 0\n", debug=True)
    log.feed("llama_model_load: error loading model: bad\n")
    assert log.layers == {0: "CPU"}
    assert log.tail() == "llama_model_load: error loading model: bad"


def test_the_cause_of_a_failure_is_the_first_error_not_the_last_line() -> None:
    log = LoadLog()
    log.feed("print_info: file size = 0.04 MiB\n")
    log.feed("llama_model_load: error loading model: key not found in model: x.block_count\n")
    log.feed("llama_model_load_from_file_impl: failed to load model\n")
    assert log.cause() == "error loading model: key not found in model: x.block_count"


def test_an_endless_line_is_not_kept() -> None:
    log = LoadLog()
    for _ in range(1000):
        log.feed("." * 1000)
    log.feed("\n")
    assert len(log.tail()) <= 500


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        *(("CPU_Mapped", "CPU"), ("CPU_REPACK", "CPU"), ("CUDA_Host", "CPU"), ("Vulkan_Host", "CPU"), ("AMX", "CPU")),
        *(("CUDA0", "CUDA0"), ("CUDA0_Split", "CUDA0"), ("Vulkan1", "Vulkan1")),
    ],
)
def test_a_buffer_type_tells_its_device(buffer: str, device: str) -> None:
    assert device_of(buffer) == device


@pytest.mark.parametrize(
    ("name", "description", "kind"),
    [
        ("CUDA0", "Orin", DeviceKind.GPU),
        ("Vulkan0", "NVIDIA Tegra Orin (nvgpu)", DeviceKind.GPU),
        ("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", DeviceKind.CPU),
        ("Vulkan0", "SwiftShader Device (LLVM 10.0.0)", DeviceKind.CPU),
        ("CPU", "AMD EPYC", DeviceKind.CPU),
    ],
)
def test_a_software_device_is_a_cpu(name: str, description: str, kind: DeviceKind) -> None:
    assert device_kind(name, description) is kind


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("qwen3-orin-cuda.log", "CUDA0", ""),
        ("gemma3-lavapipe.log", "Vulkan0", "3 on Vulkan0 (cpu)"),
        ("gemma3-no-device.log", "Vulkan0", "3 on CPU (cpu)"),
    ],
)
def test_a_strict_run_accepts_only_layers_on_the_gpu_asked_for(name: str, device: str, said: str) -> None:
    log = read(name)
    why = fallback(log, placement(log, {}), device)
    assert (why == "") == (said == "")
    assert said in why


def test_a_strict_run_refuses_one_layer_or_one_tensor_on_the_cpu() -> None:
    log = read("qwen3-orin-cuda.log")
    log.feed(
        "done: tensor 'blk.1.ffn_up.weight' (iq1_m) cannot be used with preferred buffer type CUDA0, "
        "using CPU instead\n"
    )
    assert "blk.1.ffn_up.weight" in fallback(log, placement(log, {}), "CUDA0")
    log.feed("load_tensors: layer   2 assigned to device CPU, is_swa = 0\n")
    assert "1 on CPU (cpu)" in fallback(log, placement(log, {}), "CUDA0")


def test_a_strict_run_refuses_a_log_without_proof() -> None:
    assert "does not tell" in fallback(LoadLog(), placement(LoadLog(), {}), "CUDA0")
