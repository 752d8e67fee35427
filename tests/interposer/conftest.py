"""What is compiled, once a session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interposer.node import UUID, Container, Node, build
from services.node_agent.strategies.page import GpuRule, Rules

Make = Callable[..., Container]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def node(built: Path, tmp_path: Path) -> Node:
    return Node(built, tmp_path / "node")


@pytest.fixture
def limited(node: Node) -> Iterator[Callable[[int], Container]]:
    """A container with a memory limit in bytes."""
    yield lambda limit: node.container("limited", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=limit),)))
