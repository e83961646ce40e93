from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.clock import wall_seconds, wall_text
from agent.wire import MalformedCommand, decode_command


def malformed(payload: bytes) -> MalformedCommand:
    with pytest.raises(MalformedCommand) as caught:
        decode_command(payload)
    return caught.value


def test_a_command_may_have_fields_of_the_future() -> None:
    command = decode_command(b'{"id":"a","verb":"probe","priority":3,"arguments":{"subjects":["memory"]}}')
    assert (command.id, command.verb, command.arguments) == ("a", "probe", {"subjects": ["memory"]})


def test_a_command_with_a_wrong_field_can_still_be_answered_by_its_id() -> None:
    error = malformed(b'{"id":"a","verb":"probe","arguments":[]}')
    assert (error.command_id, error.verb) == ("a", "probe")
    assert "arguments" in error.sentence


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"verb":"probe"}', b'{"id":5,"verb":"a"}', b"[" * 100_000]
)
def test_what_has_no_id_is_malformed_and_nobody_can_be_answered(payload: bytes) -> None:
    assert malformed(payload).command_id == ""


@pytest.mark.parametrize("name", ["a/b", "+", "#", "..", ""])
def test_an_id_that_would_leave_its_topic_is_malformed(name: str) -> None:
    assert malformed(b'{"id":"%s","verb":"probe"}' % name.encode()).command_id == ""


@given(st.binary(max_size=200))
def test_no_payload_raises_anything_else(payload: bytes) -> None:
    with contextlib.suppress(MalformedCommand):
        decode_command(payload)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T01:00:10+01:00", 10.0),
        ("1970-01-01T00:00:10", 10.0),
        ("1970-01-01T00:00:10.500Z", 10.5),
        ("1970-01-01T00:00:10.5Z", 10.5),
        ("1970-01-01T00:00:10.123456789Z", 10.123456),
        ("tomorrow", None),
    ],
)
def test_wall_times_are_read_in_utc(text: str, seconds: float | None) -> None:
    assert wall_seconds(text) == seconds


def test_a_wall_time_that_is_written_is_read_back() -> None:
    assert wall_seconds(wall_text(1_800_000_000.25)) == 1_800_000_000.25
