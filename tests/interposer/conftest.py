"""Fixtures of the tests of the interposer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Container, Node, end_all
from tests.support import native


@pytest.fixture(scope="session")
def built() -> Path:
    """A folder with `enforcement`, `programs` and `nvml`."""
    for name in native.SOURCES:
        native.built(name)
    return native.BUILD


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture
def node(built: Path, tmp_path: Path) -> Node:
    return Node(built, tmp_path / "node")


@pytest.fixture
def limited(node: Node) -> Callable[[int], Container]:
    """A container with a memory limit in bytes."""
    return lambda limit: node.container("limited", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=limit),)))
