"""The map names only findings that a report can have."""

from agent.report import known_subjects
from probes.stack import load_stack


def test_every_subject_of_the_map_is_a_check_or_a_runner() -> None:
    known = set(known_subjects())
    known |= {subject.split("/")[0] for subject in known}
    named = {subject for term in load_stack().terms for subject in term.subjects}
    assert named
    assert named <= known
