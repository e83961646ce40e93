"""Decode speed through a worker against a bare llama-cpp-python loop, alternating in one run with the same settings.

    python benchmarks/llm_decode.py MODEL.gguf [--rounds 9] [--tokens 64] [--threads 1] [--json]

Both run in a process of their own with the same environment and stay loaded; the one that is not measured sleeps. The
bare loop is `Llama.generate`, each token turned into bytes and nothing else. Prints the median decode rate of each, and
the median of the rounds' ratios, which is to be at least 0.97.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runners.contract import GenerateRequest, OpenOptions
from runners.messages import Generate
from runners.worker import PATIENT_OPENMP, Worker

PROMPT = "Once upon a time, in a small village by the sea, there lived"
CONTEXT_TOKENS = 1024
WARM_UP_ROUNDS = 1


def bare_loop(model: str, tokens: int, threads: int) -> None:
    """Load the model; for each line on stdin, generate once and print the decode rate in tokens/s."""
    from llama_cpp import Llama

    settings = {"n_ctx": CONTEXT_TOKENS, "n_threads": threads, "n_threads_batch": threads, "n_batch": 512}
    llama = Llama(model, flash_attn=True, verbose=False, **settings)
    prompt = llama.tokenize(PROMPT.encode(), special=True)
    print("ready", flush=True)
    for _ in sys.stdin:
        times_s = []
        for token in llama.generate(prompt, temp=0.0):
            times_s.append(time.monotonic())
            llama.detokenize([token])
            if len(times_s) == tokens:
                break
        print((tokens - 1) / (times_s[-1] - times_s[0]), flush=True)


def measure(model: str, rounds: int, tokens: int, threads: int) -> dict[str, object]:
    """Decode rates of both, one after the other in each round, the order swapped each time."""
    command = [sys.executable, __file__, model, "--bare", "--tokens", str(tokens), "--threads", str(threads)]
    request = Generate(request=GenerateRequest(prompt=PROMPT, max_tokens=tokens))
    options = OpenOptions(context_tokens=CONTEXT_TOKENS, threads=threads)
    rates: dict[str, list[float]] = {"bare": [], "worker": []}
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**PATIENT_OPENMP, **os.environ}
        ) as bare,
        Worker.start("llama_cpp", model, options) as worker,
    ):
        assert bare.stdin is not None
        assert bare.stdout is not None
        assert bare.stdout.readline() == "ready\n"

        def run_bare() -> float:
            print(file=bare.stdin, flush=True)
            return float(bare.stdout.readline())

        def run_worker() -> float:
            timing = worker.request(request).timing
            assert timing.output_tokens == tokens, "the model ended its answer early: choose fewer tokens"
            return timing.tokens_per_s or 0.0

        runs = [("bare", run_bare), ("worker", run_worker)]
        for number in range(rounds + WARM_UP_ROUNDS):
            for name, run in runs:
                rate = run()
                if number >= WARM_UP_ROUNDS:
                    rates[name].append(rate)
            runs.reverse()
        bare.stdin.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "model": Path(model).name,
        "tokens": tokens,
        "threads": threads,
        "rounds": rounds,
        "tokens_per_s": rates,
        "median_tokens_per_s": medians,
        "ratio": statistics.median(w / b for w, b in zip(rates["worker"], rates["bare"], strict=True)),
    }


def main() -> None:
    """Measure, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds after one of warm-up (default 9)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        bare_loop(arguments.model, arguments.tokens, arguments.threads)
        return
    result = measure(arguments.model, arguments.rounds, arguments.tokens, arguments.threads)
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    medians = result["median_tokens_per_s"]
    print(f"bare llama-cpp-python {medians['bare']:.1f} tokens/s, worker {medians['worker']:.1f} tokens/s")
    print(f"ratio {result['ratio']:.3f} ({arguments.rounds} rounds of {arguments.tokens} tokens, alternating)")


if __name__ == "__main__":
    main()
