"""Gangs in one topology domain, or in few."""

from __future__ import annotations

from shared.contracts.events import GangPlaced
from tests.support import build
from tests.support.harness.placement import Placement
from tests.unit.services.placement.scheduling.gangs.members import RACK, member, members, racks, why


def test_a_required_level_keeps_the_whole_gang_in_one_domain() -> None:
    placement = racks(Placement(), a1="a", a2="a", b1="b", b2="b", none="")
    placement.facts(build.gpu_pod("in-the-way", gpus=3, node_selector={"kubernetes.io/hostname": "a1"}))
    placed = placement.place(*members(6, notes={"topology": "required=rack"}))
    assert {node[0] for node in placed.values()} == {"b"}
    assert placement.events(GangPlaced)[0].area == f"{RACK}=b"


def test_of_domains_that_fit_the_one_with_the_least_free_capacity_is_taken() -> None:
    placement = racks(Placement(), a1="a", a2="a", a3="a", b1="b", b2="b")
    assert {n[0] for n in placement.place(*members(6, notes={"topology": "required=rack"})).values()} == {"b"}


def test_if_no_domain_fits_a_required_level_waits_and_names_the_nearest_domain() -> None:
    placement = racks(Placement(), a1="a", b1="b", b2="b")
    assert placement.place(*members(9, notes={"topology": "required=rack"})) == {}
    explanation = why(placement, "p0")
    assert explanation.gang is not None
    assert (explanation.gang.fits, explanation.gang.area) == (8, f"{RACK}=b")
    assert "8 of the 9 pods" in explanation.sentence
    racks(placement, b3="b")
    assert len(placement.binds()) == 9


def test_a_preferred_level_uses_one_domain_if_the_gang_fits_and_otherwise_few() -> None:
    placement = racks(Placement(), a1="a", b1="b", b2="b", c1="c", c2="c", c3="c")
    notes = {"topology": "preferred=rack"}
    assert {n[0] for n in placement.place(*members(8, gang="one", prefix="x", notes=notes)).values()} == {"b"}
    assert {n[0] for n in placement.place(*members(14, gang="two", prefix="y", notes=notes)).values()} == {"a", "c"}


def test_late_members_stay_in_the_required_domain_of_their_gang() -> None:
    placement = racks(Placement(), a1="a", b1="b")
    notes = {"topology": "required=rack", "min": "3"}
    first = placement.place(*members(3, size=6, notes=notes))
    (rack,) = {n[0] for n in first.values()}
    late = placement.place(*(member(f"late{i}", size=6, notes=notes) for i in range(3)))
    assert {n[0] for n in late.values()} == {rack}
    assert len(late) == 1
    waiting = ({f"late{i}" for i in range(3)} - late.keys()).pop()
    assert (
        f"room for 0 of the 1 pod of gang g that must be placed together, at most in {RACK}={rack}"
        in why(placement, waiting).sentence
    )


def test_level_names_map_to_labels_and_node_is_one() -> None:
    placement = Placement().nodes("n1", "n2", gpus=4)
    placement.facts(build.gpu_pod("half", gpus=2, node_selector={"kubernetes.io/hostname": "n1"}))
    assert set(placement.place(*members(4, notes={"topology": "required=node"})).values()) == {"n2"}


def test_a_level_that_no_node_has_is_named() -> None:
    placement = Placement().nodes("n1", gpus=4)
    assert placement.place(*members(2, notes={"topology": "required=example.com/row"})) == {}
    assert "no node has the label example.com/row" in why(placement, "p0").sentence
