"""What tests/model taught: a sync before the touching is a sync too early."""

from __future__ import annotations

from services.placement import messages as m
from tests.support import build
from tests.support.leader import Leader, only


def test_no_node_is_synced_before_every_pending_pod_has_been_touched() -> None:
    pod = build.gpu_pod("p", gpus=1)
    leader = Leader(build.node("n"), pod)
    leader.send(m.InventorySeen(build.inventory("n")))
    assert only(leader.said, m.SendSync) == []
    leader.facts(build.newer(pod))
    assert [c.sync.node for c in only(leader.said, m.SendSync)] == ["n"]
