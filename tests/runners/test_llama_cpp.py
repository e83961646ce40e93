"""llama.cpp for real: the bundled model's known answer, prompts, stops, cancels, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from probes.contract import DeviceKind, Status
from runners import llama_cpp
from runners.contract import (
    ChatMessage,
    FinishReason,
    GenerateRequest,
    ModelRejected,
    OpenOptions,
    Placement,
    PlacementPart,
    RequestRejected,
    RuntimeUnavailable,
)
from runners.llama_api import LlamaApi
from runners.llama_session import LlamaSession, usable_processors
from runners.model import ModelInfo
from runners.tiny import make_gguf
from tests.probes.test_cuda import compile_c

PROJECT = Path(__file__).parent.parent.parent
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: no language model was run")


def info(path: Path | str = llama_cpp.TINY, **changes: object) -> ModelInfo:
    fields: dict[str, object] = {"path": str(path), "format": "gguf", "size_bytes": 1, "format_version": 3}
    return ModelInfo(**{**fields, "architecture": "llama", **changes})  # type: ignore[arg-type]


def session_of(path: Path, context_tokens: int = 512) -> LlamaSession:
    return LlamaSession(LlamaApi(), str(path), None, OpenOptions(context_tokens=context_tokens, threads=1))


@pytest.fixture(scope="module")
def tiny() -> Iterator[LlamaSession]:
    session = session_of(llama_cpp.TINY)
    yield session
    session.close()


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[LlamaSession]:
    session = session_of(smollm2, 2048)
    yield session
    session.close()


def ask(session: LlamaSession, prompt: str = "Count:", **fields: object) -> tuple[str, FinishReason]:
    request = GenerateRequest(prompt=prompt, **fields)  # type: ignore[arg-type]
    pieces: list[str] = []
    done = session.generate(request, pieces.append, lambda: False)
    assert "".join(pieces) == done.text
    return done.text, done.finish_reason


# The check


def test_the_check_on_the_cpu_executes_the_bundled_model_and_gets_its_known_answer() -> None:
    finding = llama_cpp.check("cpu")
    assert (finding.subject, finding.status, finding.reason) == ("llama_cpp/cpu", Status.WORKS, "")
    (evidence,) = finding.evidence
    assert evidence.value == evidence.expected == make_gguf.ANSWER
    assert finding.device_kind is DeviceKind.CPU
    assert evidence.elapsed_s is not None
    assert evidence.elapsed_s > 0
    assert finding.version.startswith(LlamaApi().version)
    assert finding.facts["layers"] == {"CPU": 3}


def broken_model(folder: Path, tensor: str) -> Path:
    tensors = make_gguf.weights()
    tensors[tensor] = [[0.0] * len(row) for row in tensors[tensor]]
    path = folder / "broken.gguf"
    path.write_bytes(make_gguf.gguf(tensors))
    return path


@pytest.mark.parametrize(
    "tensor",
    [f"blk.{block}.{part}" for block in (0, 1) for part in ("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    + ["blk.1.attn_norm", "blk.0.ffn_norm", "output_norm", "output", "token_embd"],
)
def test_a_part_that_computes_wrongly_makes_the_check_say_broken(
    tensor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "TINY", broken_model(tmp_path, tensor))
    finding = llama_cpp.check("cpu")
    assert finding.status is Status.BROKEN
    assert "not ' one two three" in finding.reason
    assert finding.device_kind is DeviceKind.UNKNOWN


def test_the_bundled_file_is_what_its_maker_makes() -> None:
    assert llama_cpp.TINY.read_bytes() == make_gguf.gguf(make_gguf.weights())
    assert llama_cpp.TINY.stat().st_size < 200_000


def test_a_backend_that_was_not_compiled_in_is_absent_with_the_way_to_build_it() -> None:
    missing = [name for name in ("cuda", "vulkan") if llama_cpp.REGISTERED[name] not in LlamaApi().backends()]
    if not missing:
        pytest.skip("this llama.cpp build has all backends: the absence of one was not seen")
    for name in missing:
        finding = llama_cpp.check(name)
        assert finding.status is Status.ABSENT
        assert f"no {llama_cpp.REGISTERED[name]} backend" in finding.reason
        assert f"-DGGML_{name.upper()}=ON" in finding.remedy
        assert finding.evidence == ()


def test_a_package_that_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    finding = llama_cpp.check("cpu")
    assert (finding.status, finding.reason) == (Status.ABSENT, "llama-cpp-python is not installed")
    assert "GGML_NATIVE=OFF" in finding.remedy


def test_a_package_whose_library_is_missing_is_broken(tmp_path: Path) -> None:
    code = "from runners import llama_cpp as r; f = r.check('cpu'); print(f.status.value, f.reason)"
    environ = {**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("broken llama-cpp-python can't be imported: ")
    assert "Shared library" in done.stdout


def test_a_library_of_another_release_is_broken_and_named(tmp_path: Path) -> None:
    for name in ("ggml-base", "ggml", "ggml-cpu", "llama", "mtmd"):
        compile_c("int nothing;", tmp_path / f"lib{name}.so")
    code = "from runners import llama_cpp as r; f = r.check('cpu'); print(f.status.value, f.reason)"
    environ = {**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("broken llama-cpp-python can't be imported: ")
    assert "undefined symbol" in done.stdout


# What is accepted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "onnx"}, "llama.cpp reads GGUF, and this is onnx"),
        ({"format_version": 1}, "GGUF version 1 is no longer read"),
        ({"metadata": {"general.type": "adapter"}}, "the file is an adapter"),
        ({"metadata": {"general.type": "mmproj"}, "architecture": "clip"}, "the file is a multimodal projector"),
        ({"architecture": "clip"}, "of architecture 'clip'"),
        ({"architecture": "bert"}, "of architecture 'bert'"),
    ],
)
def test_what_is_not_a_language_model_is_refused_with_a_reason(changes: dict[str, object], said: str) -> None:
    verdict = llama_cpp.accepts(info(**changes))
    assert not verdict.accepted
    assert said in verdict.reason


def test_an_architecture_that_is_new_to_us_is_left_to_the_runtime() -> None:
    assert llama_cpp.accepts(info(architecture="zz_future9")).accepted


# Opening


def test_an_architecture_that_the_runtime_does_not_know_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "future.gguf"
    path.write_bytes(llama_cpp.TINY.read_bytes().replace(b"llama", b"zzf99"))
    with pytest.raises(ModelRejected, match=r"does not know the architecture 'zzf99' of future\.gguf") as caught:
        llama_cpp.open(info(path), OpenOptions())
    assert caught.value.remedy == "upgrade llama-cpp-python"


def test_a_truncated_file_is_rejected_with_the_runtimes_own_words(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(llama_cpp.TINY.read_bytes()[:100_000])
    with pytest.raises(ModelRejected, match=r"short\.gguf: .*(tensor|data|file)"):
        llama_cpp.open(info(path), OpenOptions())


def test_a_gpu_that_is_not_there_is_never_replaced_by_the_cpu() -> None:
    missing = [name for name in ("cuda", "vulkan") if llama_cpp.REGISTERED[name] not in LlamaApi().backends()]
    if not missing:
        pytest.skip("this llama.cpp build has all backends: the refusal was not seen")
    with pytest.raises(RuntimeUnavailable, match=r"this llama\.cpp build has no"):
        llama_cpp.open(info(), OpenOptions(backend=missing[0]))


def test_a_vulkan_device_that_the_environment_hides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "1")
    with pytest.raises(RuntimeUnavailable, match="Vulkan device 0 is hidden by GGML_VK_VISIBLE_DEVICES=1"):
        llama_cpp.open(info(), OpenOptions(backend="vulkan", device_index=0))


@pytest.mark.parametrize(
    ("visible", "count", "numbers"),
    [(None, 2, [0, 1]), ("3,1", 2, [3, 1]), ("2", 1, [2]), ("9,1", 1, [0]), ("", 1, [0])],
)
def test_a_vulkan_device_is_opened_by_the_number_that_the_check_listed(
    visible: str | None, count: int, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", visible)
    assert llama_cpp._numbers("vulkan", count) == numbers
    if visible != "9,1":  # ggml left one out and does not say which: nothing is opened by a guess
        assert [llama_cpp._position("vulkan", number) for number in numbers] == list(range(count))


def test_no_vulkan_device_is_admitted_that_the_check_did_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES", raising=False)
    assert llama_cpp._position("vulkan", 0) == 0
    assert "GGML_VK_VISIBLE_DEVICES" not in os.environ


def test_layers_in_another_place_are_no_evidence_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Placement(parts=(PlacementPart(device="CUDA7", device_kind=DeviceKind.GPU, layers=3),))
    monkeypatch.setattr(LlamaSession, "placement", lambda self: elsewhere)
    finding = llama_cpp.check("cpu")
    assert (finding.status, finding.device_kind) == (Status.BROKEN, DeviceKind.UNKNOWN)
    assert "3 on CUDA7" in finding.reason


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(RuntimeUnavailable, match="no backend 'metal'"):
        llama_cpp.open(info(), OpenOptions(backend="metal"))


def test_the_placement_is_on_the_cpu_with_bytes(tiny: LlamaSession) -> None:
    placement = tiny.placement()
    assert placement.all_on(DeviceKind.CPU)
    assert sum(part.bytes or 0 for part in placement.parts) > llama_cpp.TINY.stat().st_size * 0.8


# Generating


def test_an_answer_ends_at_the_models_own_end(tiny: LlamaSession) -> None:
    assert ask(tiny) == (make_gguf.ANSWER, FinishReason.STOP)


def test_a_character_of_three_tokens_comes_out_in_one_piece(tiny: LlamaSession) -> None:
    pieces: list[str] = []
    tiny.generate(GenerateRequest(prompt="Count:"), pieces.append, lambda: False)
    assert pieces[-1] == "✓"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_stop_text_over_several_tokens_ends_the_answer_before_it(tiny: LlamaSession) -> None:
    assert ask(tiny, stop=("e four f",)) == (" one two thre", FinishReason.STOP)


def test_max_tokens_ends_the_answer(tiny: LlamaSession) -> None:
    assert ask(tiny, max_tokens=3) == (" one two three", FinishReason.LENGTH)
    assert ask(tiny, max_tokens=0) == ("", FinishReason.LENGTH)


def test_a_full_context_ends_the_answer() -> None:
    session = session_of(llama_cpp.TINY, context_tokens=256)
    try:
        request = GenerateRequest(prompt="~", max_tokens=1000)
        done = session.generate(request, lambda piece: None, lambda: False)
    finally:
        session.close()
    assert done.finish_reason is FinishReason.LENGTH
    assert (done.timing.prompt_tokens or 0) + (done.timing.output_tokens or 0) == 256


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(tiny: LlamaSession) -> None:
    with pytest.raises(RequestRejected, match="the prompt has 2001 tokens and the context holds 512"):
        ask(tiny, "x" * 2000)


def test_a_chat_goes_through_the_files_own_template(tiny: LlamaSession) -> None:
    request = GenerateRequest(messages=(ChatMessage(role="user", content="hi"),))
    done = tiny.generate(request, lambda piece: None, lambda: False)
    assert done.text == make_gguf.ANSWER
    assert done.timing.prompt_tokens == len("user: hi") + 1  # and the template's <s>, once


def test_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(llama_cpp.TINY.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templat_"))
    session = session_of(path)
    try:
        with pytest.raises(RequestRejected, match="carries no chat template"):
            session.generate(GenerateRequest(messages=(ChatMessage(role="user", content="hi"),)), print, lambda: False)
    finally:
        session.close()


def test_a_template_that_fails_is_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    template = make_gguf.TEMPLATE.encode()
    hostile = b"{{ raise_exception('roles must alternate') }}".ljust(len(template))
    path = tmp_path / "hostile.gguf"
    path.write_bytes(llama_cpp.TINY.read_bytes().replace(template, hostile))
    session = session_of(path)
    try:
        with pytest.raises(RequestRejected, match="template refused this chat: roles must alternate"):
            session.generate(GenerateRequest(messages=(ChatMessage(role="user", content="hi"),)), print, lambda: False)
    finally:
        session.close()


def test_a_request_without_any_text_still_starts_with_the_models_first_token(tiny: LlamaSession) -> None:
    assert ask(tiny, "")[0] == make_gguf.ANSWER


def test_an_empty_prompt_is_refused_where_the_model_has_no_first_token(real: LlamaSession) -> None:
    with pytest.raises(RequestRejected, match="the prompt is empty"):
        ask(real, "")


def test_temperature_and_seed_give_the_same_answer_twice_and_another_for_another_seed(real: LlamaSession) -> None:
    answers = [ask(real, "My name is", max_tokens=12, temperature=1.5, seed=seed)[0] for seed in (7, 7, 8)]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_a_second_request_knows_nothing_of_the_first(tiny: LlamaSession) -> None:
    ask(tiny, "~", max_tokens=20)
    assert ask(tiny) == ask(tiny) == (make_gguf.ANSWER, FinishReason.STOP)


def test_the_whole_prompt_is_worked_through_each_time(real: LlamaSession) -> None:
    functions = LlamaApi().functions
    worked = []
    for _ in range(2):
        functions.llama_perf_context_reset(real._context)
        ask(real, "The capital of France is", max_tokens=2)
        worked.append(functions.llama_perf_context(real._context).n_p_eval)
    assert worked == [5, 5]


def test_a_real_model_knows_the_capital_of_france(real: LlamaSession) -> None:
    text, reason = ask(real, "The capital of France is", max_tokens=2)
    assert text == " Paris."
    assert reason is FinishReason.LENGTH


def test_a_real_chat_ends_by_itself_and_shows_no_special_token(real: LlamaSession) -> None:
    messages = (ChatMessage(role="user", content="What is 2 + 2? Answer with one number."),)
    done = real.generate(GenerateRequest(messages=messages, max_tokens=60), lambda piece: None, lambda: False)
    assert done.finish_reason is FinishReason.STOP
    assert "4" in done.text
    assert "<|im_" not in done.text


def test_a_cancel_takes_effect_within_two_tokens(tiny: LlamaSession) -> None:
    pieces: list[str] = []
    request = GenerateRequest(prompt="~", max_tokens=400)
    done = tiny.generate(request, pieces.append, lambda: len(pieces) >= 3)
    assert done.finish_reason is FinishReason.CANCELLED
    assert 3 <= (done.timing.output_tokens or 0) <= 5
    assert done.text == "".join(pieces) == " tick tock tick"


def test_a_cancel_during_the_prompt_ends_it_without_a_token(real: LlamaSession) -> None:
    asked = count()
    prompt = "word " * 1500
    done = real.generate(GenerateRequest(prompt=prompt), lambda piece: None, lambda: next(asked) >= 50)
    assert done.finish_reason is FinishReason.CANCELLED
    assert (done.text, done.timing.output_tokens, done.timing.ttft_s) == ("", 0, None)
    assert next(asked) < 60, "llama.cpp went on after it was told to stop"
    assert ask(real, "The capital of France is", max_tokens=1)[0] == " Paris"


def test_the_first_token_time_has_the_prompt_in_it(real: LlamaSession) -> None:
    def ttft_s(words: int) -> float:
        request = GenerateRequest(prompt="word " * words, max_tokens=1)
        return real.generate(request, lambda piece: None, lambda: False).timing.ttft_s or 0.0

    assert ttft_s(400) > 2 * ttft_s(10)


def test_processors_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    os.sched_setaffinity(0, one)
    try:
        assert usable_processors() == (1, 1)
    finally:
        os.sched_setaffinity(0, allowed)
    cores, threads = usable_processors()
    assert 1 <= cores <= threads == len(allowed)
