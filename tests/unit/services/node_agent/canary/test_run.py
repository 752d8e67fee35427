"""The canary over the fake driver: a library that keeps the limits is proven, and one that does not is found out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from services.node_agent.canary.run import LIMIT_BYTES, Canary, CanaryError, in_a_namespace
from services.node_agent.strategies.interposer import CONTAINER_DIR

UUID = "GPU-00000000-0000-0000-0000-000000000001"
"""As the fake driver names its first."""


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


async def test_the_interposer_is_proven_over_every_path(build: Path, tmp_path: Path) -> None:
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


async def test_what_a_context_and_a_pool_take_is_measured_on_the_way(build: Path, tmp_path: Path) -> None:
    """Without the interposer, whose slice would be smaller than what is to be seen."""
    driver = {
        "KERF_FAKE_CUDA": str(tmp_path / "world"),
        "KERF_FAKE_CUDA_CONTEXT_MIB": "311",
        "KERF_FAKE_CUDA_POOL_KIB": "32768",
    }
    proof = await canary(build, tmp_path, build / "test" / "libkerf.so", **driver).run(UUID, 0, "580.1", "digest", 5)
    assert (proof.sentence, proof.context_bytes, proof.pool_chunk_bytes) == ("", 311 << 20, 32 << 20)


async def test_without_the_interposer_the_canary_dies(build: Path, tmp_path: Path) -> None:
    """It is the canary's very point: a library that is not in front of the driver, for whatever reason, is found
    out."""
    proof = await canary(build, tmp_path, None).run(UUID, 0, "580.1", "digest", 5)
    assert not proof.ok
    assert "cuMemGetInfo shows" in proof.sentence


async def test_a_driver_that_cannot_be_reached_proves_nothing_and_disproves_nothing(
    build: Path, tmp_path: Path
) -> None:
    with pytest.raises(CanaryError, match="ended with status 3"):
        await canary(build, tmp_path, None, tmp_path / "none.so").run(UUID, 0, "580.1", "digest", 5)


@pytest.fixture
def place() -> Iterator[None]:
    """Where a container has its page. Made by the canary, in this host's own tree."""
    inside = Path(CONTAINER_DIR)
    stood = inside.exists()
    yield
    if not stood and inside.exists():
        inside.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts the page where a container has it")
async def test_the_library_that_is_shipped_meets_its_page_in_a_mount_namespace(
    build: Path, tmp_path: Path, place: None
) -> None:
    """It knows no other place than /run/kerf, and takes none from the environment."""
    under = in_a_namespace(build / "libkerf.so")
    made = Canary(
        build=build, folder=tmp_path / "canary", libcuda=str(build / "libcuda.so.1"), clock=lambda: 1 << 62, under=under
    )
    try:
        proof = await made.run(UUID, 0, "580.1", "digest", 5)
    except CanaryError as error:
        if "unshare" in str(error):
            pytest.skip(f"no mount namespaces here: {error}")
        raise
    assert (proof.ok, proof.sentence) == (True, "")
