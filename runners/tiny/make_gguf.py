"""Writes `tiny.gguf`: a two-block Llama whose answer is known byte for byte, and wrong if any part computes wrongly.

Run `python -m runners.tiny.make_gguf [FILE]` to make it again; the result is the same bytes every time.

How it works. Every token has a code, a row of a Hadamard matrix (64 numbers of +1 and -1, all rows orthogonal, the
first column all +1). With c the code of a token, d a second code of it, n the code of its successor:

- embedding: c - 3w0. The block's attention has to add 3w0: its values are read from column 0 alone and are equal at all
  positions, so the softmax-weighted mean is known although queries and keys are not trivial.
- MLP of block 0: adds d - 3w1 - c. The gate reads column 0, so that SiLU is a known factor.
- block 1: attention adds 3w1, the MLP adds n - d.
- output matrix: the row of a token is its code, so the successor gets logit 64 and all others 0. The row of "wrong"
  is -w0 - w1: it wins when an attention did not add its part.
"""

from __future__ import annotations

import itertools
import math
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH = 64  # embedding, head and MLP width: 64 is a head size that every GPU backend has kernels for
BLOCKS = 2
CONTEXT_TOKENS = 65536
ANSWER = " one two three four five six seven eight nine ten ✓"
WORDS = ANSWER.split(" ")[1:-1]
ENDLESS = "~"  # a prompt that ends in this is answered by " tick tock tick ..." without end
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] }}: {{ message['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
)

Vector = list[float]
Matrix = list[Vector]

ATTENTION_GAIN = 3.0
GATE = 4.0
EPSILON = 1e-5
F32, F16 = 0, 1
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def hadamard(row: int) -> Vector:
    """Row `row` of the 64 x 64 Sylvester-Hadamard matrix; element 0 is always +1."""
    return [-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(WIDTH)]


def vocabulary() -> tuple[list[str], list[int]]:
    """Token texts and their GGUF types: three special ones, all 256 bytes, then words."""
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{value:02X}>" for value in range(256)]
    words = ["▁", "▁wrong", "▁tick", "▁tock"] + ["▁" + word for word in WORDS]
    return texts + words, [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words)


def successors(texts: Sequence[str]) -> tuple[dict[int, int], int]:
    """Which token follows which, and the token that follows all others: the first of the answer."""
    place = {text: index for index, text in enumerate(texts)}
    sentence = [place["▁" + word] for word in WORDS] + [place["▁"]]
    sentence += [place[f"<0x{value:02X}>"] for value in "✓".encode()] + [place["</s>"]]
    chain = dict(itertools.pairwise(sentence))
    tick, tock = place["▁tick"], place["▁tock"]
    chain.update({place[f"<0x{ord(ENDLESS):02X}>"]: tick, tick: tock, tock: tick})
    return chain, sentence[0]


def plus(*vectors: Sequence[float]) -> Vector:
    """The sum of vectors."""
    return [sum(values) for values in zip(*vectors, strict=True)]


def times(factor: float, vector: Sequence[float]) -> Vector:
    """A vector multiplied by a number."""
    return [factor * value for value in vector]


def zeros(rows: int) -> Matrix:
    """A matrix of zeros, `WIDTH` columns."""
    return [[0.0] * WIDTH for _ in range(rows)]


def add_outer(matrix: Matrix, left: Sequence[float], right: Sequence[float]) -> None:
    """Add left x right to `matrix` in place."""
    for row, factor in zip(matrix, left, strict=True):
        for column, value in enumerate(right):
            row[column] += factor * value


def attention(added: Vector, random_numbers: random.Random) -> dict[str, Matrix]:
    """Weights of an attention that adds `added`, given an input of code - 3w.

    Column 0 of that input is 1 - 3 before the norm, which divides by the root mean square, sqrt(1 + 9).
    """
    column_0 = (1.0 - ATTENTION_GAIN) / math.sqrt(1.0 + ATTENTION_GAIN**2 + EPSILON)
    value, output = zeros(WIDTH), zeros(WIDTH)
    for index in range(WIDTH):
        value[index][0] = 1.0 / column_0
        output[index][index] = added[index]
    noise = [[random_numbers.choice((-0.125, 0.0, 0.125)) for _ in range(WIDTH)] for _ in range(2 * WIDTH)]
    return {"attn_q": noise[:WIDTH], "attn_k": noise[WIDTH:], "attn_v": value, "attn_output": output}


def mlp(steps: Sequence[tuple[Vector, Vector]]) -> dict[str, Matrix]:
    """Weights of an MLP that adds the second vector of a step when its input is the first, a code."""
    silu = GATE / (1.0 + math.exp(-GATE))
    gate, up, down = zeros(WIDTH), zeros(WIDTH), zeros(WIDTH)
    for index in range(WIDTH):
        gate[index][0] = GATE
        up[index][index] = 1.0
    for code, added in steps:
        add_outer(down, times(1.0 / (silu * WIDTH), added), code)
    return {"ffn_gate": gate, "ffn_up": up, "ffn_down": down}


def weights() -> dict[str, Matrix]:
    """All tensors of the model, by GGUF name; norms have one row."""
    texts, _ = vocabulary()
    chain, first = successors(texts)
    rows = iter(range(1, WIDTH))
    w0, w1, other = hadamard(next(rows)), hadamard(next(rows)), hadamard(next(rows))
    code = {token: hadamard(next(rows)) for token in sorted({*chain, *chain.values()})}
    second = {token: hadamard(next(rows)) for token in sorted(chain)}
    other_second = hadamard(next(rows))
    links = [(code[a], second[a], code[b]) for a, b in chain.items()] + [(other, other_second, code[first])]
    w0_part, w1_part = times(ATTENTION_GAIN, w0), times(ATTENTION_GAIN, w1)
    random_numbers = random.Random(1)  # noqa: S311 (weights, not secrets)
    tensors = {
        "token_embd": [plus(code[t] if t in chain else other, times(-1.0, w0_part)) for t in range(len(texts))],
        "output": [code.get(token, [0.0] * WIDTH) for token in range(len(texts))],
        "output_norm": [[1.0] * WIDTH],
    }
    tensors["output"][texts.index("▁wrong")] = times(-1.0, plus(w0, w1))
    added = [
        [(c, plus(d, times(-1.0, plus(w1_part, c)))) for c, d, _ in links],
        [(d, plus(n, times(-1.0, d))) for _, d, n in links],
    ]
    for block, part in enumerate((w0_part, w1_part)):
        for name, matrix in {**attention(part, random_numbers), **mlp(added[block])}.items():
            tensors[f"blk.{block}.{name}"] = matrix
        tensors[f"blk.{block}.attn_norm"] = tensors[f"blk.{block}.ffn_norm"] = [[1.0] * WIDTH]
    return tensors


def text(value: str) -> bytes:
    """A GGUF string."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key: str, kind: int, packed: bytes) -> bytes:
    """One metadata entry of GGUF type `kind`."""
    return text(key) + struct.pack("<I", kind) + packed


def array(kind: int, items: Sequence[bytes]) -> bytes:
    """A GGUF array of packed items."""
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def metadata() -> list[bytes]:
    """The key-value part. Source: GGUF specification, version 3 (ggml docs/gguf.md)."""
    u32, f32, boolean, string, listing = 4, 6, 7, 8, 9
    texts, kinds = vocabulary()
    strings = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "edge-agent tiny",
        "general.license": "apache-2.0",
        "tokenizer.ggml.model": "llama",
        "tokenizer.chat_template": TEMPLATE,
    }
    numbers = {
        "general.file_type": 1,
        "llama.block_count": BLOCKS,
        "llama.context_length": CONTEXT_TOKENS,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 1,
        "llama.attention.head_count_kv": 1,
        "llama.rope.dimension_count": WIDTH,
        "llama.vocab_size": len(texts),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    epsilon = field("llama.attention.layer_norm_rms_epsilon", f32, struct.pack("<f", EPSILON))
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_space_prefix": False}
    return [
        *(field(key, string, text(value)) for key, value in strings.items()),
        *(field(key, u32, struct.pack("<I", value)) for key, value in numbers.items()),
        *(field(key, boolean, struct.pack("<?", value)) for key, value in flags.items()),
        epsilon,
        field("tokenizer.ggml.tokens", listing, array(string, [text(t) for t in texts])),
        field("tokenizer.ggml.scores", listing, array(f32, [struct.pack("<f", 0.0)] * len(texts))),
        field("tokenizer.ggml.token_type", listing, array(5, [struct.pack("<i", k) for k in kinds])),
    ]


def padded(data: bytes) -> bytes:
    """`data`, filled up to GGUF's default alignment of 32 bytes."""
    return data + b"\0" * (-len(data) % 32)


def gguf(tensors: dict[str, Matrix]) -> bytes:
    """A whole GGUF file; matrices as F16, norms as F32 as llama.cpp wants them."""
    fields = metadata()
    infos, data = [], b""
    for name, matrix in tensors.items():
        norm = name.endswith("norm")
        shape = [WIDTH] if norm else [len(matrix[0]), len(matrix)]
        flat = [value for row in matrix for value in row]
        infos.append(
            text(name + ".weight")
            + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32 if norm else F16, len(data))
        )
        data += padded(struct.pack(f"<{len(flat)}{'f' if norm else 'e'}", *flat))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields))
    return padded(head + b"".join(fields) + b"".join(infos)) + data


def main() -> None:
    """Write the file named on the command line, or the bundled one."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("tiny.gguf")
    target.write_bytes(gguf(weights()))
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
