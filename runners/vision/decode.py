"""Class scores made into the likeliest classes with their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runners.vision.spec import Scores

SUM_TOLERANCE = 0.01  # FP16 sums of many classes
RANGE_TOLERANCE = 1e-3


def settle(rows: Sequence[Any]) -> Scores:
    """What a model's numbers are, judged by its answers to some test inputs.

    Args:
        rows: arrays of one axis, one number a class.
    """
    inside = all(row.min() >= -RANGE_TOLERANCE and row.max() <= 1 + RANGE_TOLERANCE for row in rows)
    if not inside:
        return Scores.LOGITS
    if rows[0].size > 1 and all(abs(float(row.sum()) - 1) <= SUM_TOLERANCE for row in rows):
        return Scores.PROBABILITIES
    return Scores.INDEPENDENT


def probabilities(row: Any, scores: Scores) -> Any:
    """The probability of each class.

    Args:
        row: numbers of the model, one axis.
        scores: what they are; softmax is applied to logits only, the logistic function when there is one class.

    Returns: float64, same size.

    Raises:
        ValueError: a number is not finite, or outside 0..1 where it should be a probability.
    """
    import numpy as np

    values: Any = np.asarray(row, np.float64)
    if not np.isfinite(values).all():
        raise ValueError("the model answered with numbers that are not finite (NaN or infinity)")
    if scores is Scores.LOGITS:
        if values.size == 1:
            return 1 / (1 + np.exp(-values.clip(-700, 700)))
        powers = np.exp(values - values.max())
        return powers / powers.sum()
    if values.min() < -RANGE_TOLERANCE or values.max() > 1 + RANGE_TOLERANCE:
        raise ValueError(
            f"the model's scores were taken for {scores.value}, but here they reach from {values.min():.3g} to "
            f'{values.max():.3g}: say "scores": "logits" in the sidecar'
        )
    return values.clip(0, 1)


def top_classes(values: Any, labels: Sequence[str], top: int) -> list[dict[str, object]]:
    """The likeliest classes, likeliest first; equal ones by index.

    Args:
        values: probabilities, one axis.
        labels: class names in order; when empty, a class is called by its number.
        top: how many, at least 1.
    """
    import numpy as np

    order = np.argsort(-values, kind="stable")[: max(1, top)]
    return [
        {
            "index": int(index),
            "label": labels[index] if labels else f"class {index}",
            "probability": float(values[index]),
        }
        for index in order
    ]
