from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.topics import TopicError, Topics, check_level

TOPICS = Topics(prefix="edge/v1", device_id="jetson-7")


def test_topics_are_spelled_as_the_contract_says() -> None:
    assert TOPICS.status == "edge/v1/jetson-7/status"
    assert TOPICS.capabilities == "edge/v1/jetson-7/capabilities"
    assert TOPICS.commands == "edge/v1/jetson-7/commands"
    assert TOPICS.command_state("c1") == "edge/v1/jetson-7/commands/c1"
    assert TOPICS.stream("c1") == "edge/v1/jetson-7/streams/c1"
    assert TOPICS.events("door") == "edge/v1/jetson-7/events/door"


@pytest.mark.parametrize(
    ("topic", "parts"),
    [
        (TOPICS.status, ("status", "")),
        (TOPICS.capabilities, ("capabilities", "")),
        (TOPICS.commands, ("commands", "")),
        (TOPICS.command_state("c1"), ("command_state", "c1")),
        (TOPICS.stream("c1"), ("stream", "c1")),
        (TOPICS.events("door"), ("events", "door")),
        ("edge/v1/jetson-70/status", None),
        ("edge/v1/jetson-7/commands/c1/more", None),
        ("edge/v1/jetson-7/commands/", None),
        ("edge/v1/jetson-7/other", None),
        ("edge/v1/jetson-7", None),
    ],
)
def test_a_topic_is_taken_apart_into_what_it_was_built_from(topic: str, parts: tuple[str, str] | None) -> None:
    assert TOPICS.parse(topic) == parts


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a+b", "a#", "$share", "a b", "a\0b", "a\n", "a\u200b", "x" * 129]
)
def test_a_name_that_cannot_stand_in_a_topic_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(TopicError, match="the command id"):
        TOPICS.command_state(name)


@given(st.text(max_size=140))
def test_whatever_is_allowed_as_an_id_comes_back_whole(name: str) -> None:
    try:
        check_level(name, "id")
    except TopicError:
        return
    assert TOPICS.parse(TOPICS.command_state(name)) == ("command_state", name)
