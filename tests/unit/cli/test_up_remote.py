"""`kerf up --remote`: nodes that serve their GPUs to nodes without any."""

from __future__ import annotations

import argparse

import msgspec
import pytest

from cli.output import Failure
from cli.up import _nodes
from shared.model.hollow_node import HollowNode


def arguments(**changes: int) -> argparse.Namespace:
    common = {
        "kubeconfig": "",
        "nodes": 2,
        "gpus": 1,
        "gpu_model": "NVIDIA-H200",
        "gpu_memory_mib": 1024,
        "firm": False,
    }
    return argparse.Namespace(**(common | {"mig": 0, "remote": 0, "rtt_us": 10} | changes))


def test_some_serve_and_some_use() -> None:
    nodes = msgspec.convert(_nodes(arguments(remote=2, rtt_us=50)), tuple[HollowNode, ...])
    assert [(n.name, n.count, bool(n.remote.address), n.remote.client) for n in nodes] == [
        ("node-0", 1, True, False),
        ("node-1", 1, True, False),
        ("client-0", 0, False, True),
        ("client-1", 0, False, True),
    ]
    assert {name: link.rtt_us for name, link in nodes[2].remote.network.items()} == {"node-0": 50, "node-1": 50}


def test_without_it_no_node_serves() -> None:
    nodes = msgspec.convert(_nodes(arguments()), tuple[HollowNode, ...])
    assert [(n.name, n.remote.address, n.remote.client) for n in nodes] == [
        ("node-0", "", False),
        ("node-1", "", False),
    ]


@pytest.mark.parametrize("wrong", [{"remote": -1}, {"remote": 1, "rtt_us": 0}])
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Failure):
        _nodes(arguments(**wrong))
