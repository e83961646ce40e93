"""Each promise of the expectation file, on the device itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hil.verdicts import Result, Verdict

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the survey and the runs


def test_promise(promise: str, judged: Mapping[str, Verdict]) -> None:
    verdict = judged[promise]
    if verdict.result is Result.SKIP:
        pytest.skip(verdict.reason)
    if verdict.result is not Result.PASS:
        pytest.fail(f"{verdict.result.value} {promise}: {verdict.reason}", pytrace=False)
