"""The grants that placement makes: a limit above the request is carried beside it, and the request alone is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.placement import messages as m
from shared.book.states import pod_state
from shared.model.grant import GpuShare, decode_grant, encode_grant
from shared.model.objects import Pod
from shared.model.strategies import StrategyName
from tests.support import build
from tests.support.harness.placement import Placement

PROVEN: tuple[StrategyName, ...] = ("exclusive", "advisory", "interposer", "time_slice")
SOFT: tuple[StrategyName, ...] = ("exclusive", "advisory")


def placement_with(strategies: tuple[StrategyName, ...] = PROVEN, **gpu: Any) -> Placement:
    placement = Placement(policy="binpack")
    placement.facts(build.node("n"))
    placement.send(m.InventorySeen(build.inventory("n", gpus=1, strategies=strategies, memory_mib=40960, **gpu)))
    return placement


def bursting(name: str, *, reserved: int = 0, **limits: str) -> Pod:
    notes = {f"kerf.dev/gpu-{key}-limit": value for key, value in limits.items()}
    return build.gpu_pod(name, memory="8Gi", compute=reserved, annotations=notes)


def share(placement: Placement, name: str) -> GpuShare:
    (container,) = decode_grant(placement.binds()[f"uid-team-{name}"].grant).containers.values()
    (mine,) = container.gpus
    return mine


def test_the_grant_has_request_and_limit_and_the_book_counts_the_request() -> None:
    """Five pods of 8 GiB fit on 40 GiB, whatever each may use."""
    placement = placement_with()
    pods = [bursting(f"p{number}", memory="24Gi") for number in range(6)]
    placement.facts(*pods)
    assert len(placement.binds()) == 5
    assert (share(placement, "p0").memory_mib, share(placement, "p0").memory_limit_mib) == (8192, 24576)
    assert placement.core.book.nodes["n"].gpus[0].free_mib == 0


def test_a_limit_beyond_the_gpu_is_all_of_it_and_keeps_the_pod_off_no_gpu() -> None:
    placement = placement_with()
    placement.facts(bursting("p", reserved=30, memory="200Gi"))
    mine = share(placement, "p")
    assert (mine.memory_limit_mib, mine.compute_limit_milli) == (40960, 0)


@pytest.mark.parametrize("annotations", [{"memory": "24Gi"}, {"memory": "24Gi", "compute": "60"}])
def test_what_a_pod_without_limits_gets_is_written_as_before(annotations: dict[str, str]) -> None:
    """Agents and placements of earlier versions read it, and a grant without limits has no word of them."""
    placement = placement_with()
    placement.facts(build.gpu_pod("plain", memory="8Gi", compute=30), bursting("burst", reserved=30, **annotations))
    assert "limit" not in placement.binds()["uid-team-plain"].grant
    text = placement.binds()["uid-team-burst"].grant
    assert '"memory_limit_mib":24576' in text
    assert encode_grant(decode_grant(text)) == text


def test_a_node_that_cannot_take_memory_back_does_not_get_it_and_says_why() -> None:
    placement = placement_with(SOFT)
    explanation = placement.core.explainer.why(pod_state(bursting("p", memory="24Gi")), max_nodes=5, exists=False)
    (reason,) = explanation.summary
    assert reason.code == "bursts"
    assert "exclusive, advisory, none of which can take lent memory back" in reason.sentence
    assert "leave out kerf.dev/gpu-memory-limit" in reason.helps


def test_a_limit_equal_to_the_request_is_none() -> None:
    placement = placement_with(SOFT)
    placement.facts(bursting("p", memory="8Gi"))
    assert share(placement, "p").memory_limit_mib == 0


def test_the_grant_names_the_container_whose_share_init_containers_have() -> None:
    """The agent knows the amounts of the grant alone, by which another container may be larger."""
    placement = placement_with()
    (full,) = build.gpu_pod(memory="8Gi", compute=10).spec.containers
    (fast,) = build.gpu_pod(memory="4Gi", compute=60).spec.containers
    apps = (full, msgspec.structs.replace(fast, name="fast"))
    placement.facts(build.pod("p", containers=apps, init_containers=(msgspec.structs.replace(fast, name="load"),)))
    assert decode_grant(placement.binds()["uid-team-p"].grant).init_share == "fast"
