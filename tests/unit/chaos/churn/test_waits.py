"""Which pods count as fitting, which as stuck, and what is a gap."""

from __future__ import annotations

import pytest

from tests.chaos.audit import Ask
from tests.chaos.churn.waits import STUCK_S, Waits, fitting

MIB = 1000
GPUS = {("n1", "a"): MIB, ("n1", "b"): MIB, ("n2", "c"): MIB}
ALL = ("n1", "n2")


@pytest.mark.parametrize(
    ("ask", "used", "nodes", "fits"),
    [
        (Ask(2), {}, ALL, True),
        (Ask(3), {}, ALL, False),
        (Ask(2), {("n1", "a"): (1, 0)}, ALL, False),
        (Ask(1), {("n1", "a"): (1, 0)}, ALL, True),
        (Ask(1), {("n1", "a"): (MIB, 0), ("n1", "b"): (0, 1000)}, ("n1",), False),
        (Ask(1, memory_mib=500, milli=0), {("n1", "a"): (500, 1000)}, ("n1",), True),
        (Ask(2, memory_mib=501, milli=0), {("n1", "a"): (500, 1000)}, ("n1",), False),
        (Ask(1), {}, (), False),
    ],
    ids=["two on a node", "three on none", "a part is taken", "elsewhere", "full", "a part", "not twice", "no agent"],
)
def test_a_pod_fits_where_one_node_has_all_its_gpus_free(
    ask: Ask, used: dict[tuple[str, str], tuple[int, int]], nodes: tuple[str, ...], fits: bool
) -> None:
    assert fitting({"p": ask}, GPUS, used, nodes) == ({"p"} if fits else set())


def test_a_pod_is_stuck_that_fitted_at_every_look_for_longer_than_a_minute() -> None:
    waits = Waits()
    for second in range(0, int(STUCK_S) + 1, 10):
        waits.look(float(second), (), {"p", "q"} if second != 30 else {"p"}, able=True)
    assert waits.stuck == {}
    waits.look(STUCK_S + 1, (), {"p", "q"}, able=True)
    assert waits.stuck == {"p": STUCK_S + 1}
    waits.look(STUCK_S + 9, (), {"p"}, able=True)
    assert waits.stuck == {"p": STUCK_S + 9}, "the longest time counts, and each pod once"


def test_time_in_which_nothing_could_work_is_no_time_in_service() -> None:
    waits = Waits()
    waits.look(0.0, (), {"p"}, able=True)
    waits.look(50.0, (), {"p"}, able=True)
    waits.look(55.0, (), {"p"}, able=False)
    waits.look(80.0, (), {"p", "q"}, able=True)
    waits.look(90.0, (), {"p", "q"}, able=True)
    assert waits.stuck == {"p": 90.0}
    assert waits.stuck_in_service == {}, "50 s and 10 s: of the time from 50 to 80 s it was not able all the time"
    waits.look(90.5, (), {"p", "q"}, able=True)
    assert waits.stuck_in_service == {"p": 60.5}, "and of the other pod, that fits since 80 s, 10.5 s"


def test_a_gap_is_between_bindings_while_a_pod_fits() -> None:
    waits = Waits()
    waits.look(0.0, ("a",), (), able=True)
    waits.look(50.0, ("a",), (), able=True)
    assert waits.longest_gap_s == 0.0, "nothing fitted"
    waits.look(51.0, ("a",), {"p"}, able=True)
    waits.look(53.0, ("a", "b"), {"p"}, able=True)
    assert waits.longest_gap_s == 2.0
    waits.look(54.0, ("a", "b", "c"), {"p"}, able=True)
    waits.look(58.0, ("a", "b", "c"), {"p"}, able=True)
    assert waits.longest_gap_s == 4.0, "one that has not ended counts"
    waits.look(70.0, ("a", "b", "c"), (), able=True)
    assert waits.longest_gap_s == 4.0, "what fitted is gone: nobody waited for this Binding"
    waits.look(90.0, ("d",), {"p"}, able=True)
    waits.look(91.0, ("d",), {"p"}, able=True)
    assert waits.longest_gap_s == 4.0, "it begins anew with the next pod that fits"


def test_the_last_binding_of_those_that_waited_ends_a_gap() -> None:
    waits = Waits()
    waits.look(0.0, (), {"p"}, able=True)
    waits.look(7.0, ("p",), (), able=True)
    assert waits.longest_gap_s == 7.0


def test_a_pod_that_is_gone_is_no_binding() -> None:
    waits = Waits()
    waits.look(0.0, ("a", "b"), {"p"}, able=True)
    waits.look(3.0, ("a",), {"p"}, able=True)
    waits.look(5.0, ("a",), {"p"}, able=True)
    assert waits.longest_gap_s == 5.0
