"""The tensor types of GGUF files: number, name, elements and bytes of a block.

Source: ggml/include/ggml.h and ggml/src/ggml-common.h of ggml 0.25; a test compares with an installed library.
Numbers 4, 5, 31-33 and 36-38 were given up: no runtime reads them, but files with them exist.
"""

from __future__ import annotations

from typing import NamedTuple


class GgmlType(NamedTuple):
    """`block` elements of a row are stored in `size_bytes` bytes."""

    name: str
    block: int
    size_bytes: int


TYPES = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    2: GgmlType("Q4_0", 32, 18),
    3: GgmlType("Q4_1", 32, 20),
    6: GgmlType("Q5_0", 32, 22),
    7: GgmlType("Q5_1", 32, 24),
    8: GgmlType("Q8_0", 32, 34),
    9: GgmlType("Q8_1", 32, 36),
    10: GgmlType("Q2_K", 256, 84),
    11: GgmlType("Q3_K", 256, 110),
    12: GgmlType("Q4_K", 256, 144),
    13: GgmlType("Q5_K", 256, 176),
    14: GgmlType("Q6_K", 256, 210),
    15: GgmlType("Q8_K", 256, 292),
    16: GgmlType("IQ2_XXS", 256, 66),
    17: GgmlType("IQ2_XS", 256, 74),
    18: GgmlType("IQ3_XXS", 256, 98),
    19: GgmlType("IQ1_S", 256, 50),
    20: GgmlType("IQ4_NL", 32, 18),
    21: GgmlType("IQ3_S", 256, 110),
    22: GgmlType("IQ2_S", 256, 82),
    23: GgmlType("IQ4_XS", 256, 136),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    29: GgmlType("IQ1_M", 256, 56),
    30: GgmlType("BF16", 1, 2),
    34: GgmlType("TQ1_0", 256, 54),
    35: GgmlType("TQ2_0", 256, 66),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
    41: GgmlType("Q1_0", 128, 18),
    42: GgmlType("Q2_0", 64, 18),
}
REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


def type_name(number: int) -> str:
    """The type's name, or its number for one that is not in the table."""
    known = TYPES.get(number)
    return known.name if known else REMOVED.get(number, f"type {number}")


def tensor_bytes(number: int, row: int, elements: int) -> int | None:
    """Bytes of a tensor.

    Args:
        number: the type's number.
        row: elements of the first axis, along which blocks lie.
        elements: of the whole tensor.

    Returns: None for a type that is not in the table, or whose blocks don't fill a row.
    """
    known = TYPES.get(number)
    if known is None or row % known.block:
        return None
    return elements // known.block * known.size_bytes
