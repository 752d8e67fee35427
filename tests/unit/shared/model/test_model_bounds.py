"""Impossible amounts are refused when they are decoded, before any arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from shared.contracts.base import ContractError, decode, encode
from shared.contracts.node_commands import LiveSlice, NodeSyncAnswer
from shared.contracts.queries import WhyQuery
from shared.model.gpu import MOST_GPUS, MOST_MIB, Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant

GPU: dict[str, Any] = {"uuid": "a", "index": 0, "model": "H", "memory_mib": 1}
SHARE: dict[str, Any] = {"node": "n", "uuid": "a", "memory_mib": 1, "compute_milli": 1}


def _inventory(*gpus: dict[str, Any]) -> bytes:
    return encode({"node": "n", "boot_id": "b", "gpus": gpus})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"uuid": ""}, "uuid is empty"),
        ({"memory_mib": -1}, "memory_mib is -1"),
        ({"memory_mib": MOST_MIB + 1}, "between 0 and"),
        ({"foreign_mib": -1}, "foreign_mib is -1"),
        ({"foreign_mib": 10**40}, "foreign_mib is 1000"),
        ({"index": 2**64}, "index is "),
        ({"numa_node": -2}, "numa_node is -2"),
        ({"minor": 2**31}, "minor is "),
        ({"to_device_mb_s": 10**30}, "to_device_mb_s is "),
        ({"cpus": "node0"}, "cpus is 'node0'"),
        ({"cpus": "0-"}, "cpus is '0-'"),
        ({"cpus": "9" * 5000}, "cpus is "),
    ],
)
def test_a_gpu_has_a_name_and_a_size(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        decode(_inventory(GPU | change), Inventory)


@pytest.mark.parametrize(
    "change",
    [
        {"links": [{"a": 0, "b": 2**64}]},
        {"nics": [{"name": "x", "pods": 2**64}]},
        {"nics": [{"name": "x", "pcie": {str(2**40): "node"}}]},
        {"generation": 2**63},
    ],
)
def test_a_node_has_no_numbers_that_placement_cannot_hold(change: dict[str, Any]) -> None:
    """One agent's report must not stop the leader of the whole cluster."""
    with pytest.raises(ContractError, match="must be between"):
        decode(encode({"node": "n", "boot_id": "b", "gpus": [GPU]} | change), Inventory)


@pytest.mark.parametrize("cpus", ["", "0", "0-31,64-95", "0,2,4"])
def test_cpus_beside_a_gpu_are_a_list(cpus: str) -> None:
    assert decode(_inventory(GPU | {"cpus": cpus}), Inventory).gpus[0].cpus == cpus


def test_a_gpu_may_have_no_memory_or_the_maximum() -> None:
    for size in (0, MOST_MIB):
        assert decode(_inventory(GPU | {"memory_mib": size}), Inventory).gpus == (
            Gpu(uuid="a", index=0, model="H", memory_mib=size),
        )


def test_a_node_names_each_gpu_once_and_not_thousands() -> None:
    with pytest.raises(ContractError, match="names GPU a twice"):
        decode(_inventory(GPU, GPU | {"index": 1}), Inventory)
    with pytest.raises(ContractError, match="the number of GPUs is 1025"):
        decode(_inventory(*(GPU | {"uuid": str(i)} for i in range(MOST_GPUS + 1))), Inventory)


@pytest.mark.parametrize(
    "change", [{"memory_mib": -1}, {"memory_mib": 2**63}, {"compute_milli": -1}, {"compute_milli": 10**30}]
)
def test_a_share_is_no_debt_and_no_galaxy(change: dict[str, Any]) -> None:
    name = next(iter(change))
    share = encode(
        {"grant_id": "g", "term": 1, "containers": {"c": {"strategy": "advisory", "gpus": [SHARE | change]}}}
    )
    with pytest.raises(ContractError, match=f"{name} is "):
        decode(share, Grant)
    live = {"uid": "u", "namespace": "t", "name": "p", "container": "c", "grant_id": "g", "strategy": "advisory"}
    amounts = [change.get("memory_mib", 0), change.get("compute_milli", 0)]
    answer = encode(
        {"node": "n", "boot_id": "b", "term": 1, "accepted": True, "live": [live | {"gpus": {"a": amounts}}]}
    )
    with pytest.raises(ContractError, match=f"{name} is "):
        decode(answer, NodeSyncAnswer)


def test_what_is_within_bounds_comes_back_as_it_was() -> None:
    grant = Grant(
        grant_id="g", term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(GpuShare(**SHARE),))}
    )
    assert decode(encode(grant), Grant) == grant
    live = LiveSlice(
        uid="u", namespace="t", name="p", container="c", grant_id="g", strategy="advisory", gpus={"a": (0, 1000)}
    )
    assert decode(encode(live), LiveSlice) == live


@pytest.mark.parametrize(
    "payload",
    [b'{"namespace":"\xff","name":"x"}', b"[" * 200_000, b"", b"\x00"],
    ids=["not UTF-8", "too deep", "nothing", "zero"],
)
def test_bytes_that_are_no_message_break_the_contract_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(ContractError, match="this is no WhyQuery"):
        decode(payload, WhyQuery)
