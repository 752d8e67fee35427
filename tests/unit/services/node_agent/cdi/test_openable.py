"""Which GPUs a container can open."""

from __future__ import annotations

from services.node_agent.cdi.openable import openable
from shared.model.gpu import Gpu
from shared.model.grant import Grant
from tests.unit.services.node_agent.cdi.hosts import share

GPUS = {name: Gpu(uuid=name, index=index, model="H200", memory_mib=100) for index, name in enumerate(("a", "b", "c"))}


def opened(grant: Grant | None) -> list[str]:
    return [one.uuid for one in openable((share("b"),), GPUS, grant)]


def test_a_container_can_open_all_gpus_if_its_memory_may_come_back_to_any_and_else_its_own() -> None:
    grant = Grant(grant_id="g", term=1, containers={})
    assert opened(Grant(grant_id="g", term=1, containers={}, any_gpu=True)) == ["b", "a", "c"]
    assert opened(grant) == ["b"]
    assert opened(None) == ["b"]
    assert openable((), GPUS, Grant(grant_id="g", term=1, containers={}, any_gpu=True)) == ()
