"""When a leased container is gone for good."""

from __future__ import annotations

import pytest

from services.node_agent.handover.slots import Holder, Holding
from services.node_agent.release.gone import Seen, gone
from shared.contracts.node_commands import LiveSlice

LEASE = LiveSlice(uid="u-1", namespace="team", name="web-0", container="main", grant_id="g-1", strategy="advisory")


def holding(uid: str, slot: str, container: str = "main") -> Holding:
    return Holding(uid=uid, container=container, slots=frozenset({slot}), cdi_names=("k1",))


def holder(slot: str, name: str = "web-0", container: str = "main") -> Holder:
    return Holder(namespace="team", name=name, container=container, slots=frozenset({slot}))


def seen(
    *, cgroups: set[str] = frozenset(), holdings: tuple = (), holders: tuple = (), on_gpus: set[str] = frozenset()
) -> Seen:  # type: ignore[assignment, type-arg]
    return Seen(cgroups=frozenset(cgroups), holdings=holdings, holders=holders, on_gpus=frozenset(on_gpus))


@pytest.mark.parametrize(
    ("what", "case", "is_gone"),
    [
        ("nothing of it is left", seen(), True),
        ("its pod's cgroup stands, as after a deletion by force", seen(cgroups={"u-1"}), False),
        ("a process of it is still on a GPU", seen(on_gpus={"u-1"}), False),
        ("the kubelet still names it", seen(holdings=(holding("u-1", "s1"),), holders=(holder("s1"),)), False),
        ("the checkpoint has it still, but the kubelet names it no more", seen(holdings=(holding("u-1", "s1"),)), True),
        (
            "a new pod of the same name has another slot",
            seen(holdings=(holding("u-1", "s1"), holding("u-2", "s2")), holders=(holder("s2"),)),
            True,
        ),
        (
            "a new pod of the same name has its slot",
            seen(holdings=(holding("u-2", "s1"),), holders=(holder("s1"),)),
            True,
        ),
        (
            "another container of the pod is named",
            seen(holdings=(holding("u-1", "s2", "side"),), holders=(holder("s2", container="side"),)),
            True,
        ),
        ("another pod runs", seen(cgroups={"u-2"}, on_gpus={"u-2"}), True),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_container_is_gone_when_nobody_knows_it_any_more(what: str, case: Seen, is_gone: bool) -> None:
    assert (gone([LEASE], case) == [LEASE]) is is_gone, what
