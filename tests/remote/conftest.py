"""Fixtures of the tests of remote GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Node, end_all
from tests.remote.remote import Server
from tests.support import native


@pytest.fixture
def node(tmp_path: Path) -> Node:
    for name in native.SOURCES:
        native.built(name)
    return Node(native.BUILD, tmp_path / "node")


@pytest.fixture
def serve(node: Node, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server in a slice with a memory limit in bytes."""
    with ExitStack() as stack:
        # pytest's folders are for one user: the server stays that user.
        node.environment["KERF_REMOTE_UID"] = "0"

        def start(limit: int = 1 << 30, name: str = "slice") -> Server:
            container = node.container(name, Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=limit),)))
            return stack.enter_context(Server(node, container, tmp_path / f"{name}.sock"))

        yield start
    end_all()
