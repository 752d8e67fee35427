"""The lines of k8s/nats.conf that follow from the registry."""

from __future__ import annotations

from shared.contracts.generate import PERMISSIONS, check_permissions
from shared.contracts.permissions import render


def test_the_committed_permissions_are_those_of_the_contracts() -> None:
    """Drift fails here: run `python -m shared.contracts.generate`."""
    assert check_permissions() == []


def test_each_file_has_its_generated_lines() -> None:
    for path in PERMISSIONS:
        text = path.read_text()
        for line in ("queries that placement answers", "queries that cli asks", "events that preemptor publishes"):
            assert f"# {line}\n" in text


def test_a_line_is_made_from_the_comment_above_it() -> None:
    text = "  # queries that preemptor answers\n  old\n  # events that preemptor publishes\n  old\n  kept\n"
    assert render(text) == (
        '  # queries that preemptor answers\n  "kerf.v1.query.preempt"\n'
        '  # events that preemptor publishes\n  "kerf.v1.event.preemption.proposed.>"\n  kept\n'
    )


def test_an_entity_whose_events_have_one_publisher_is_allowed_as_a_whole() -> None:
    (_, allowed, _) = render("# events that node_agent publishes\n\n").split("\n")
    assert allowed == '"kerf.v1.event.node.>", "kerf.v1.event.slice.>", "kerf.v1.event.gpu.>"'
