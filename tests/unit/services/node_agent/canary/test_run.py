"""The canary on the fake driver: it proves a library that keeps the limits, and detects one that does not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from services.node_agent.canary.run import LIMIT_BYTES, Canary, CanaryError, in_a_namespace
from services.node_agent.strategies.interposer import CONTAINER_DIR

UUID = "GPU-00000000-0000-0000-0000-000000000001"
"""The UUID of the fake driver's first GPU."""


def canary(build: Path, tmp_path: Path, library: Path | None, driver: Path | None = None, **environment: str) -> Canary:
    def under(folder: Path, command: Sequence[str]) -> Sequence[str]:
        return ["env", *([f"LD_PRELOAD={library}"] if library else []), *command]

    return Canary(
        build=build,
        folder=tmp_path / "canary",
        libcuda=str(driver or build / "libcuda.so.1"),
        clock=lambda: 1 << 62,
        under=under,
        environment=environment,
    )


async def test_the_interposer_is_proven_on_every_allocation_path(build: Path, tmp_path: Path) -> None:
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so").run(UUID, 0, "580.1", "digest", 5)
    assert (proof.ok, proof.sentence) == (True, "")
    assert (proof.driver_version, proof.library, proof.max_memory_bytes, len(proof.paths)) == (
        "580.1",
        "digest",
        LIMIT_BYTES,
        9,
    )
    assert abs(proof.share_got_milli - 300) <= 20
    assert not (tmp_path / "canary").exists()


async def test_the_canary_runs_on_the_gpu_that_it_is_given(build: Path, tmp_path: Path) -> None:
    uuid = UUID.removesuffix("1") + "2"
    made = canary(build, tmp_path, build / "test" / "libkerf.so", KERF_FAKE_CUDA_DEVICES="2")
    proof = await made.run(uuid, 1, "580.1", "digest", 5)
    assert (proof.sentence, proof.gpu) == ("", uuid)


async def test_the_memory_of_contexts_and_pools_is_measured(build: Path, tmp_path: Path) -> None:
    """Measured without the interposer, which would report the smaller slice."""
    driver = {
        "KERF_FAKE_CUDA": str(tmp_path / "world"),
        "KERF_FAKE_CUDA_CONTEXT_MIB": "311",
        "KERF_FAKE_CUDA_POOL_KIB": "32768",
    }
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so", **driver).run(UUID, 0, "580.1", "digest", 5)
    assert (proof.sentence, proof.context_bytes, proof.pool_chunk_bytes) == ("", 311 << 20, 32 << 20)


async def test_the_canary_fails_without_the_interposer(build: Path, tmp_path: Path) -> None:
    """This is the purpose of the canary: it detects a library that is not preloaded, for whatever reason."""
    proof = await canary(build, tmp_path, None).run(UUID, 0, "580.1", "digest", 5)
    assert not proof.ok
    assert "cuMemGetInfo shows" in proof.sentence


async def test_an_unreachable_driver_proves_and_disproves_nothing(build: Path, tmp_path: Path) -> None:
    with pytest.raises(CanaryError, match="ended with status 3"):
        await canary(build, tmp_path, None, tmp_path / "none.so").run(UUID, 0, "580.1", "digest", 5)


@pytest.fixture
def place() -> Iterator[None]:
    """Where a container has its control block. The canary creates it in this host's own file system."""
    inside = Path(CONTAINER_DIR)
    stood = inside.exists()
    yield
    if not stood and inside.exists():
        inside.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts the control block where a container has it")
async def test_the_shipped_library_finds_its_page_in_a_mount_namespace(
    build: Path, tmp_path: Path, place: None
) -> None:
    """It knows no other path than /run/kerf, and reads none from the environment."""
    under = in_a_namespace(build / "libkerf.so")
    made = Canary(
        build=build, folder=tmp_path / "canary", libcuda=str(build / "libcuda.so.1"), clock=lambda: 1 << 62, under=under
    )
    try:
        proof = await made.run(UUID, 0, "580.1", "digest", 5)
    except CanaryError as error:
        if "unshare" in str(error):
            pytest.skip(f"mount namespaces are not available here: {error}")
        raise
    assert (proof.ok, proof.sentence) == (True, "")
