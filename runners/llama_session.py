"""A model loaded by llama.cpp: loads it on one device, proves where it lies, and answers token by token."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runners.contract import (
    FinishReason,
    GenerateRequest,
    Generation,
    ModelRejected,
    OpenOptions,
    OutOfDeviceMemory,
    Placement,
    RequestRejected,
    RunnerError,
    RuntimeUnavailable,
)
from runners.llama_api import GgmlDevice, LlamaApi
from runners.llama_log import LoadLog, fallback, placement
from runners.text import AnswerText
from runners.timing import language_timing

BATCH_TOKENS = 512  # prompt tokens per decode: a cancel is seen at least this often on a GPU
LEVEL_DEBUG, LEVEL_CONTINUED = 1, 5  # ggml.h: ggml_log_level (llama-cpp-python 0.3.36 still has older numbers)
DECODE_ABORTED = 2  # llama.h: llama_decode
ALL_LAYERS = 0x7FFFFFFF
ROOM_FOR_SPECIAL_TOKENS = 16


class LlamaSession:
    """A `LanguageSession`. Nothing of an earlier request is reused: TTFT always includes the whole prompt.

    Loading ends with a run of one token, so that pages of a mapped file and a GPU's pipelines are there before the
    first request, and a build that this processor can't execute dies now.

    Args:
        api: the loaded library.
        path: the GGUF file, the first one of a split model.
        device: where the layers go; None for the CPU alone.
        options: context, threads, strict.

    Attributes:
        log: of loading.
        tokens: ids of the last answer's tokens.

    Raises:
        ModelRejected: llama.cpp does not take the file.
        OutOfDeviceMemory: weights or context did not fit.
        RuntimeUnavailable: strict, and a part would be elsewhere than on the device asked for.
    """

    def __init__(self, api: LlamaApi, path: str, device: GgmlDevice | None, options: OpenOptions) -> None:
        self.log = LoadLog()
        self.tokens: list[int] = []
        self._api, self._llama = api, api.functions
        self._model: Any = None
        self._context: Any = None
        self._level = 0
        self._on_log = self._llama.llama_log_callback(self._take_log)  # kept: C holds only the address
        self._llama.llama_log_set(self._on_log, None)
        try:
            self._load(path, device)
            self._make_context(options)
            kinds = {known.name: known.kind for known in api.devices()}
            self._placement = placement(self.log, kinds)
            if options.strict and device is not None and (why := fallback(self.log, self._placement, device.name)):
                raise RuntimeUnavailable(why, "choose a smaller model or context, or allow a part on the CPU")
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def generate(
        self, request: GenerateRequest, emit: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> Generation:
        """Answer one request; see `LanguageSession`.

        Raises:
            RequestRejected: no text, no template for a chat, or more tokens than the context holds.
        """
        start_s = time.monotonic()
        prompt = self._prompt_tokens(request)
        self._forget()
        self.tokens = []
        sampler = self._sampler(request)
        token_times_s: list[float] = []
        pieces: list[str] = []

        def show(piece: str) -> None:
            if piece:
                pieces.append(piece)
                emit(piece)

        try:
            finish_reason = FinishReason.CANCELLED
            if self._prefill(prompt, cancelled):
                room = min(request.max_tokens, self._context_tokens - len(prompt))
                answer = AnswerText(request.stop)
                finish_reason = self._decode(sampler, room, answer, show, token_times_s, cancelled)
                show(answer.finish())
        finally:
            self._llama.llama_sampler_free(sampler)
        timing = language_timing(start_s, token_times_s, len(prompt))
        return Generation(text="".join(pieces), finish_reason=finish_reason, timing=timing)

    def placement(self) -> Placement:
        """Where the layers are, from the load log."""
        return self._placement

    def close(self) -> None:
        """Give the memory back; the log goes to stderr again."""
        if self._context is not None:
            self._llama.llama_free(self._context)
        if self._model is not None:
            self._llama.llama_model_free(self._model)
        self._context = self._model = None
        self._llama.llama_log_set(type(self._on_log)(0), None)

    def _take_log(self, level: int, text: bytes, _: object) -> None:
        if level != LEVEL_CONTINUED:
            self._level = level
        debug = self._level == LEVEL_DEBUG
        self.log.feed(text.decode("utf-8", "replace"), debug)
        if not debug:
            with contextlib.suppress(OSError):  # nobody reads any more
                os.write(2, text)  # so that the last lines are known even if this process dies

    def _load(self, path: str, device: GgmlDevice | None) -> None:
        self._llama.llama_backend_init()
        parameters = self._llama.llama_model_default_params()
        # An explicit list: without one, prompts are worked on by any GPU there is, even for a model on the CPU.
        handles = (ctypes.c_void_p * 2)(device.handle if device else None, None)
        parameters.devices = ctypes.cast(handles, ctypes.c_void_p)
        parameters.n_gpu_layers = ALL_LAYERS if device else 0
        self._model = self._llama.llama_model_load_from_file(os.fsencode(path), parameters)
        if self._model is None:
            raise self._load_failure(Path(path).name)
        self._vocabulary = self._llama.llama_model_get_vocab(self._model)

    def _load_failure(self, name: str) -> RunnerError:
        if self.log.memory_line:
            return OutOfDeviceMemory(
                f"llama.cpp could not load {name}: {self.log.memory_line}",
                "choose a smaller model or quantisation, or free memory",
            )
        if self.log.unknown_architecture:
            return ModelRejected(
                f"llama.cpp of llama-cpp-python {self._api.version} does not know the architecture "
                f"'{self.log.unknown_architecture}' of {name}",
                "upgrade llama-cpp-python",
            )
        return ModelRejected(f"llama.cpp could not load {name}: {self.log.cause()}")

    def _make_context(self, options: OpenOptions) -> None:
        threads, all_threads = usable_processors()
        parameters = self._llama.llama_context_default_params()
        parameters.n_ctx = options.context_tokens
        parameters.n_batch = parameters.n_ubatch = min(BATCH_TOKENS, options.context_tokens)
        parameters.n_threads = options.threads or threads
        parameters.n_threads_batch = options.threads or all_threads
        self._batch_tokens = int(parameters.n_batch)
        self._context = self._llama.llama_init_from_model(self._model, parameters)
        if self._context is None:
            what = f"a context of {options.context_tokens} tokens could not be made"
            if self.log.memory_line:
                raise OutOfDeviceMemory(f"{what}: {self.log.memory_line}", "ask for a smaller context")
            raise RunnerError(f"{what}: {self.log.cause()}")
        self._context_tokens = int(self._llama.llama_n_ctx(self._context))
        self._piece = ctypes.create_string_buffer(64)

    def _warm_up(self) -> None:
        bos = self._llama.llama_vocab_bos(self._vocabulary)
        self._llama.llama_set_warmup(self._context, True)
        self._run([max(bos, 0)])
        self._llama.llama_synchronize(self._context)
        self._llama.llama_set_warmup(self._context, False)

    def _forget(self) -> None:
        memory = self._llama.llama_get_memory(self._context)
        if memory:
            self._llama.llama_memory_clear(memory, False)

    def _prompt_tokens(self, request: GenerateRequest) -> list[int]:
        text, add_special = request.prompt, True
        if request.messages:
            text, add_special = self._chat_text(request)
        data = text.encode("utf-8", "replace")
        room = len(data) + ROOM_FOR_SPECIAL_TOKENS
        tokens = (self._llama.llama_token * room)()
        count = self._llama.llama_tokenize(self._vocabulary, data, len(data), tokens, room, add_special, True)
        if count <= 0:
            raise RequestRejected("the prompt is empty" if not data else "llama.cpp can't tokenise the prompt")
        if count >= self._context_tokens:
            raise RequestRejected(
                f"the prompt has {count} tokens and the context holds {self._context_tokens}, the answer included",
                f"shorten the prompt, or load the model with a context of more than {count} tokens",
            )
        return tokens[:count]  # type: ignore[no-any-return]

    def _chat_text(self, request: GenerateRequest) -> tuple[str, bool]:
        """A chat through the file's own template, and whether the tokeniser has to add its special tokens."""
        from jinja2 import TemplateError
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self._llama.llama_model_chat_template(self._model, None)
        if not template:
            raise RequestRejected("the model file carries no chat template", "ask with a prompt instead of a chat")
        bos = self._special_text(self._llama.llama_vocab_bos(self._vocabulary))
        eos = self._special_text(self._llama.llama_vocab_eos(self._vocabulary))
        turns = [{"role": message.role, "content": message.content} for message in request.messages]
        try:
            formatter = Jinja2ChatFormatter(template.decode("utf-8", "replace"), eos_token=eos, bos_token=bos)
            text: str = formatter(messages=turns).prompt
        except (TemplateError, ValueError, TypeError) as error:
            raise RequestRejected(f"the model's own chat template refused this chat: {error}") from error
        return text, not (bos and text.startswith(bos))

    def _special_text(self, token: int) -> str:
        if token < 0:
            return ""
        text: bytes = self._llama.llama_vocab_get_text(self._vocabulary, token)
        return text.decode("utf-8", "replace")

    def _sampler(self, request: GenerateRequest) -> Any:
        llama = self._llama
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if request.temperature <= 0:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
            return chain
        for part in (  # llama.cpp's own defaults
            llama.llama_sampler_init_top_k(40),
            llama.llama_sampler_init_top_p(0.95, 1),
            llama.llama_sampler_init_min_p(0.05, 1),
            llama.llama_sampler_init_temp(request.temperature),
            llama.llama_sampler_init_dist(request.seed & 0xFFFFFFFF),
        ):
            llama.llama_sampler_chain_add(chain, part)
        return chain

    def _prefill(self, prompt: Sequence[int], cancelled: Callable[[], bool]) -> bool:
        """Work through the prompt; False when it was cancelled. The CPU backend asks between graph nodes."""
        abort = self._llama.ggml_abort_callback(lambda _: cancelled())
        self._llama.llama_set_abort_callback(self._context, abort, None)
        try:
            for start in range(0, len(prompt), self._batch_tokens):
                if cancelled() or not self._run(prompt[start : start + self._batch_tokens]):
                    return False
        finally:  # not while decoding: asking a thousand times per token would cost some percent
            self._llama.llama_set_abort_callback(self._context, self._llama.ggml_abort_callback(0), None)
        return True

    def _run(self, tokens: Sequence[int]) -> bool:
        array = (self._llama.llama_token * len(tokens))(*tokens)
        return self._ran(self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(array, len(tokens))))

    def _ran(self, code: int) -> bool:
        if code == 0 or code == DECODE_ABORTED:
            return code == 0
        if self.log.memory_line:
            raise OutOfDeviceMemory(f"llama.cpp ran out of memory: {self.log.memory_line}")
        raise RunnerError(f"llama_decode answered {code}; llama.cpp last said: {self.log.tail()}")

    def _decode(
        self,
        sampler: Any,
        room: int,
        answer: AnswerText,
        show: Callable[[str], None],
        token_times_s: list[float],
        cancelled: Callable[[], bool],
    ) -> FinishReason:
        llama, context, vocabulary = self._llama, self._context, self._vocabulary
        token = (llama.llama_token * 1)()
        batch = llama.llama_batch_get_one(token, 1)
        while len(token_times_s) < room:
            if cancelled():
                return FinishReason.CANCELLED
            token[0] = llama.llama_sampler_sample(sampler, context, -1)
            if llama.llama_vocab_is_eog(vocabulary, token[0]):
                return FinishReason.STOP
            token_times_s.append(time.monotonic())
            self.tokens.append(token[0])
            show(answer.feed(self._token_bytes(token[0])))
            if answer.stopped:
                return FinishReason.STOP
            if len(token_times_s) < room:
                self._ran(llama.llama_decode(context, batch))
        return FinishReason.LENGTH

    def _token_bytes(self, token: int) -> bytes:
        size = len(self._piece)
        count = self._llama.llama_token_to_piece(self._vocabulary, token, self._piece, size, 0, False)
        if count < 0:  # the size that it wants
            self._piece = ctypes.create_string_buffer(-count)
            return self._token_bytes(token)
        return self._piece.raw[:count]


def usable_processors() -> tuple[int, int]:
    """Cores, and hardware threads, that this process may run on.

    Decoding waits for memory: a second thread on one core only disturbs it. Prompts are computed, and take all.
    """
    threads = os.sched_getaffinity(0)
    cores = set()
    for thread in threads:
        siblings = Path(f"/sys/devices/system/cpu/cpu{thread}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            cores.add(str(thread))
    return len(cores), len(threads)
