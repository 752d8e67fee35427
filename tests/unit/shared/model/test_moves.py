"""Which amended grants are moves to other GPUs."""

from __future__ import annotations

import msgspec
import pytest

from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.moves import can_move, is_move, moved_gpus, on_gpus


def share(uuid: str, *, mib: int = 100, node: str = "n") -> GpuShare:
    return GpuShare(node=node, uuid=uuid, memory_mib=mib, compute_milli=500)


def grant(*shares: GpuShare, beside: tuple[GpuShare, ...] = (), **rest: object) -> Grant:
    containers = {"main": ContainerGrant(strategy="interposer", gpus=shares)}
    if beside:
        containers["beside"] = ContainerGrant(strategy="interposer", gpus=beside)
    return msgspec.structs.replace(Grant(grant_id="g", term=1, containers=containers, any_gpu=True), **rest)


def test_a_move_has_the_same_amounts_on_other_gpus_and_is_the_next_amendment() -> None:
    before = grant(share("a"), share("b", mib=200), beside=(share("a", mib=10),), amendment=3)
    after = on_gpus(before, {"a": "b", "b": "c"})
    assert after == grant(share("b"), share("c", mib=200), beside=(share("b", mib=10),), amendment=4)
    assert is_move(before, after)
    assert moved_gpus(before, after) == {"a": "b", "b": "c"}


@pytest.mark.parametrize(
    "after",
    [
        grant(share("a"), share("b"), amendment=1),
        grant(share("c"), share("c"), amendment=1),
        grant(share("c"), share("b", node="m"), amendment=1),
        grant(share("c"), amendment=1),
        grant(share("c"), share("b"), beside=(share("c"),), amendment=1),
        grant(share("c"), share("b"), amendment=2),
        grant(share("c"), share("b", mib=99), amendment=1),
    ],
)
def test_what_is_no_move(after: Grant) -> None:
    assert not is_move(grant(share("a"), share("b")), after)


def test_two_containers_of_one_gpu_move_to_one_gpu() -> None:
    before = grant(share("a"), beside=(share("a"),))
    assert not moved_gpus(before, grant(share("b"), beside=(share("c"),)))


def test_a_grant_that_may_not_move_does_not() -> None:
    before = grant(share("a"), any_gpu=False)
    assert not is_move(before, on_gpus(before, {"a": "b"}))


@pytest.mark.parametrize(
    "changes",
    [{"strategy": "time_slice"}, {"strategy": "exclusive"}, {"claim": "uid-1"}],
)
def test_what_cannot_move(changes: dict[str, str]) -> None:
    whole = grant(share("a"))
    assert can_move(whole.containers)
    part = msgspec.structs.replace(whole.containers["main"], **changes)
    assert not can_move({"main": part})
