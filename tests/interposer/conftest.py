"""Fixtures: the C programs are compiled once per session."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Container, Node, build, end_all


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler")
    return build(tmp_path_factory.mktemp("built"))


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
