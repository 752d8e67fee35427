"""NVML in a container reports the slice, with the fake NVML."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules
from tests.interposer.node import MIB, UUID, Container, Node

MACHINE = f"driver 580.95.05\ncuda 13000\ngpu 0 {UUID} NVIDIA_H200 143771 00000000:01:00.0 0 9 0 0 0\n"


@pytest.mark.parametrize(("limit_mib", "total_mib"), [(2000, 2000), (1 << 20, 143771)])
def test_nvml_reports_the_slice_and_never_more_than_the_device(
    built: Path, tmp_path: Path, limit_mib: int, total_mib: int
) -> None:
    (tmp_path / "machine").write_text(MACHINE)
    node = Node(built, tmp_path / "node")
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=limit_mib * MIB),)))
    libraries = f"{built / 'enforcement'}:{built / 'nvml'}"
    total, used, free = container.run("nvml", LD_LIBRARY_PATH=libraries, KERF_FAKE_NVML_STATE=str(tmp_path / "machine"))
    assert (total, used, free) == (total_mib * MIB, 64 * MIB, (total_mib - 64) * MIB)


def test_a_slice_whose_limit_changes_shows_a_size_that_does_not(built: Path, tmp_path: Path) -> None:
    """The size is the most that it may ever use; free is what it may use now."""
    (tmp_path / "machine").write_text(MACHINE)
    node = Node(built, tmp_path / "node")

    def rule(limit_mib: int) -> Rules:
        return Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=limit_mib * MIB, shown_bytes=400 * MIB),))

    container = node.container("a", rule(100))
    libraries = f"{built / 'enforcement'}:{built / 'nvml'}"
    inside = {"LD_LIBRARY_PATH": libraries, "KERF_FAKE_NVML_STATE": str(tmp_path / "machine")}
    assert container.run("nvml", **inside) == [400 * MIB, 64 * MIB, 36 * MIB]
    program, seen = container.start("lends"), []
    assert program.stdin is not None
    assert program.stdout is not None
    for limit_mib, line in ((100, "take 200"), (300, "take 200"), (60, "look"), (400, "look")):
        container.control_block.write(rule(limit_mib), context_bytes=0, driver_path=str(node.driver))
        program.stdin.write(f"{line}\n")
        program.stdin.flush()
        seen.append(tuple(map(int, program.stdout.readline().split())))
    assert seen == [(100, 0, 400), (300, 0, 400), (300, 0, 400), (300, 100, 400)]


@pytest.mark.parametrize("nvml", [False, True], ids=["cuda", "nvml"])
def test_the_memory_of_a_process_that_has_died_is_shown_as_free_at_once(
    built: Path, tmp_path: Path, nvml: bool
) -> None:
    """Before anything allocates or attaches, which also reclaims it: programs size their caches by what they see."""
    (tmp_path / "machine").write_text(MACHINE)
    node = Node(built, tmp_path / "node")
    container = node.container("a", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=100 * MIB),)))
    libraries = f"{built / 'enforcement'}:{built / 'nvml'}" if nvml else str(built / "enforcement")
    inside = {"LD_LIBRARY_PATH": libraries, "KERF_FAKE_NVML_STATE": str(tmp_path / "machine")}
    victim = container.start("info", "64", **inside)
    assert victim.stdout is not None
    victim.stdout.readline()
    witness = container.start("info", "0", **inside)
    assert witness.stdout is not None
    assert witness.stdin is not None
    shown = {int(word) for word in witness.stdout.readline().split()}
    victim.kill()
    victim.communicate()
    witness.stdin.write("\n")
    witness.stdin.flush()
    then = {int(word) for word in witness.stdout.readline().split()}
    assert (shown, then) == ({36 * MIB}, {100 * MIB})


def test_the_library_loads_in_images_with_an_old_c_library(built: Path) -> None:
    """The linker ignores a preloaded library that it cannot load: the library may use nothing newer than glibc 2.17."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    listed = subprocess.run(
        ["objdump", "-T", str(built / "enforcement" / "libkerf.so")], check=True, capture_output=True, text=True
    ).stdout
    wanted = {
        version for line in listed.splitlines() if "*UND*" in line for version in re.findall(r"GLIBC_([\d.]+)", line)
    }
    assert wanted
    assert max(tuple(map(int, version.split("."))) for version in wanted) <= (2, 17)


@pytest.mark.skipif(any(Path("/usr").glob("lib*/**/libcuda.so.1")), reason="this machine has a driver")
def test_a_program_that_works_without_a_driver_finds_none_if_there_is_none(built: Path, tmp_path: Path) -> None:
    """It must not find the interposer, which has no driver to forward to."""
    node, rules = Node(built, tmp_path / "node"), Rules(gpus=(GpuRule(uuid=UUID),))
    assert node.container("a", rules).run("lookup") == [1]
    without = Container(node, ControlBlock(tmp_path / "b", lambda: 0))
    without.control_block.write(rules, context_bytes=0, driver_path="/nowhere")
    assert without.run("lookup", LD_LIBRARY_PATH="") == [0]
