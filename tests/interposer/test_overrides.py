"""Programs that define functions of the C library themselves, and look up the originals by dlsym."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import UUID, Container, Node, numbers

HELLO = '#include <stdio.h>\nint main(void) { puts("1"); return 0; }\n'
SANITIZERS = {
    "thread": ("gcc", "-fsanitize=thread"),
    "thread-clang": ("clang", "-fsanitize=thread"),
    "address-clang": ("clang", "-fsanitize=address"),
}


@pytest.fixture
def container(node: Node) -> Container:
    return node.container("a", Rules(gpus=(GpuRule(uuid=UUID),)))


def test_a_lookup_calls_no_function_that_the_program_defines(container: Container) -> None:
    assert container.run("overrides") == [1]


@pytest.mark.parametrize(("compiler", "option"), SANITIZERS.values(), ids=SANITIZERS)
def test_a_program_with_a_sanitizer_runs(
    container: Container, node: Node, tmp_path: Path, compiler: str, option: str
) -> None:
    """It looks up all functions that it checks before main."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    program = tmp_path / "hello"
    (tmp_path / "hello.c").write_text(HELLO)
    command = [compiler, option, "-o", str(program), str(tmp_path / "hello.c")]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no {option}")
    bare = node.bare(str(program))
    if bare.communicate()[0] != "1\n":
        pytest.skip(f"{option} does not work on this machine")
    # address: it wants to be the first library, which it cannot be beside a preloaded one
    assert numbers(container.start(str(program), ASAN_OPTIONS="verify_asan_link_order=0")) == [1]
