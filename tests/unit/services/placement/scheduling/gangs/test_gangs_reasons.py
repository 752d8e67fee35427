"""What users see of a gang: reasons, Events, public events and traces."""

from __future__ import annotations

import itertools

import pytest

from services.placement import messages as m
from services.placement.leader.traces import record
from shared.contracts.commands import ReportPending
from shared.contracts.events import GangPlaced, GangWaiting, PlacementDecided, PlacementRejected
from shared.telemetry import Telemetry
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import member, members, why


def test_kerf_why_counts_the_existing_members() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(3, size=5))
    explanation = why(placement, "p1")
    assert explanation.sentence == "3 of the 5 pods of gang g are there, and none is placed before the others"
    assert explanation.gang is not None
    assert (explanation.gang.members, explanation.gang.minimum, explanation.gang.placed) == (3, 5, 0)


def test_kerf_why_names_the_member_that_does_not_fit_beside_the_others() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [member("a", size=3, gpus=3), member("b", size=3, gpus=3), member("c", size=3, gpus=2)]
    assert placement.place(*pods) == {}
    explanation = why(placement, "a")
    assert explanation.gang is not None
    assert (explanation.gang.fits, explanation.gang.misfit) == (2, "c")
    assert "c does not beside them" in explanation.sentence


def test_members_get_a_reason_once_and_again_when_it_changes() -> None:
    placement = Placement().nodes("n1", gpus=1)
    placement.place(*members(2, size=3))
    for _ in range(50):
        placement.tick()
    waiting = placement.events(GangWaiting)
    assert [e.sentence.split(",")[0] for e in waiting] == ["2 of the 3 pods of gang g are there"]
    placement.facts(member("p2", size=3))
    for _ in range(400):
        placement.tick()
    assert len(placement.events(GangWaiting)) == 2
    assert "room for 1 of the 3 pods" in placement.events(GangWaiting)[-1].sentence


def test_events_name_the_gang() -> None:
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(3))
    assert {e.gang for e in placement.events(PlacementDecided)} == {"g"}
    (event,) = placement.events(GangPlaced)
    assert (event.name, sorted(event.pods), event.nodes, event.minimum) == ("g", ["p0", "p1", "p2"], 1, 3)
    assert event.sequence == placement.log[-1][0]


def test_the_trace_of_each_member_links_to_that_of_the_gang() -> None:
    telemetry = Telemetry("placement", ratio=1.0, otlp_endpoint="", to_bus=True)
    placement = Placement().nodes("n1", gpus=4)
    placement.place(*members(2))
    for command in placement.commands:
        if isinstance(command, m.Publish):
            record(telemetry, command)
    spans = telemetry.take()
    (gang,) = [s for s in spans if s.name == "gang.placed"]
    placements = [s for s in spans if s.name == "placement"]
    assert len({s.trace_id for s in placements} - {gang.trace_id}) == 2
    assert all(gang.trace_id in link for s in placements for link in s.links)


@pytest.mark.parametrize("fail", [True, False])
def test_explaining_changes_nothing(fail: bool) -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    pods = [member("a", size=3, gpus=3), member("b", size=3, gpus=3), member("c", size=3, gpus=2 if fail else 1)]
    placement.place(*pods)
    before = placement.core.book.digest()
    why(placement, "a")
    assert placement.core.book.digest() == before


def test_a_changed_reason_is_reported_even_if_no_pod_fits() -> None:
    """Two of five fitted when they got the reason; then a node comes, and four fit."""
    placement = Placement().nodes("a", gpus=2)
    pods = [
        build.gpu_pod(f"p{i}", gpus=1, annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "5"}) for i in range(5)
    ]
    placement.facts(*pods)
    for _ in range(10):
        placement.tick(0.5)
    placement.nodes("b", gpus=2)
    for _ in range(80):
        placement.send(m.BeatSeen(("a", "b")))
        placement.tick(0.5)
    said: dict[str, str] = {}
    for command in placement.commands:
        for patch in command.patches if isinstance(command, m.SendPatches) else ():
            if isinstance(patch, ReportPending):
                said[patch.uid] = patch.message
    assert len(said) == 5
    assert all("room for 4 of the 5 pods" in message for message in said.values())


def test_explaining_takes_a_seventh_of_the_time_at_most() -> None:
    """On a machine with little time to spare an explanation takes seconds; here each takes one."""
    placement = Placement().nodes("n1", gpus=1)
    seconds = itertools.count()
    placement.core.pending_reasons._stopwatch = lambda: float(next(seconds))
    placement.facts(*(build.gpu_pod(f"p{i}", gpus=2, labels={"a": str(i)}, memory=f"{i + 1}Gi") for i in range(4)))
    reported: list[float] = []
    for _ in range(400):
        before = len(placement.events(PlacementRejected))
        placement.tick(0.1)
        if len(placement.events(PlacementRejected)) > before:
            reported.append(placement.now)
    pauses = [later - earlier for earlier, later in itertools.pairwise(reported)]
    assert len(placement.events(PlacementRejected)) == 4
    assert min(pauses) >= 7.0
