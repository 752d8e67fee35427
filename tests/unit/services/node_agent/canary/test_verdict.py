"""How the canary's measurements are judged."""

from __future__ import annotations

from typing import Any

import pytest

from services.node_agent.canary import verdict
from services.node_agent.canary.verdict import Proof
from shared.model.units import MIB

LIMIT, CHUNK = 100, 10


def line(path: str = "cuMemAlloc", **changes: Any) -> dict[str, Any]:
    return {"path": path, "bytes": 100, "again": 100, "error": 2, "freed": 0} | changes


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([line(), line("cuMemCreate", bytes=90, again=80)], ""),
        ([{"shown_total": 100}, line()], ""),
        ([], "tried no allocation path"),
        ([{"shown_total": 101}, line()], "shows 101 bytes"),
        ([line(), line("cuMemCreate", bytes=101)], "cuMemCreate gave 101 bytes, the limit is 100"),
        ([line(again=101)], "gave 101 bytes"),
        ([line(bytes=79)], "gave 79 bytes of 100, and no more"),
        ([line(again=0)], "gave 0 bytes of 100"),
        ([line(error=1)], "ended with error 1"),
        ([line(freed=400)], "freed with error 400"),
    ],
)
def test_memory_is_proven_if_every_path_gives_exactly_the_limit(lines: list[dict[str, Any]], word: str) -> None:
    wrong, _, _ = verdict.of_memory(lines, LIMIT, CHUNK)
    assert (word in wrong) if word else wrong == ""


@pytest.mark.parametrize(
    ("done", "word"),
    [([300, 300], ""), ([349, 349], ""), ([360, 360], "got 360"), ([200, 200], "only 200"), ([], "only 0")],
)
def test_a_compute_share_is_proven_by_the_measured_time(done: list[int], word: str) -> None:
    wrong, _ = verdict.of_share({"done_ns": [milli * 1_000_000 for milli in done]}, 300, 2000)
    assert (word in wrong) if word else wrong == ""


@pytest.mark.parametrize(
    ("proof", "driver", "library", "word"),
    [
        (Proof(driver_version="580.1", library="l", ok=True, context_bytes=0), "580.1", "l", ""),
        (Proof(driver_version="580.1", library="l", ok=True), "580.1", "l", "CUDA context is not known"),
        (Proof(driver_version="580.1", library="l", ok=True), "580.2", "l", "not been proven with driver 580.2"),
        (Proof(driver_version="580.1", library="l", ok=True), "580.1", "m", "not been proven"),
        (
            Proof(driver_version="580.1", library="l", ok=False, sentence="it leaks"),
            "580.1",
            "l",
            "failed with driver 580.1: it leaks",
        ),
        (None, "580.1", "l", "not been proven"),
        (None, "", "l", "no driver"),
        (None, "580.1", "", "not in this image"),
    ],
)
def test_a_proof_is_valid_for_one_driver_and_one_library(
    proof: Proof | None, driver: str, library: str, word: str
) -> None:
    why = verdict.offered(proof, driver, library)
    assert (word in why) if word else why == ""


@pytest.mark.parametrize(
    ("seen", "bytes_"),
    [
        ([300 * MIB, 301 * MIB, 300 * MIB], 301 * MIB),
        ([300 * MIB + 1, 300 * MIB, 300 * MIB], 301 * MIB),
        ([300 * MIB, 330 * MIB, 300 * MIB], verdict.UNKNOWN),
        ([2 * MIB, -MIB, 0], verdict.UNKNOWN),
        ([0, 0, 0], 0),
        ([], verdict.UNKNOWN),
    ],
)
def test_the_memory_of_a_context_counts_only_if_measurements_agree(seen: list[int], bytes_: int) -> None:
    assert verdict.of_contexts({"context_bytes": seen}) == bytes_


@pytest.mark.parametrize(
    ("own", "bytes_"),
    [
        ([417 * MIB, 418 * MIB, 417 * MIB], 418 * MIB),
        ([417 * MIB, 0, 417 * MIB], verdict.UNKNOWN),
        ([], verdict.UNKNOWN),
    ],
)
def test_nvmls_figure_of_the_process_itself_counts_while_others_use_the_gpu(own: list[int], bytes_: int) -> None:
    seen = [300 * MIB, -90 * MIB, 810 * MIB]
    assert verdict.of_contexts({"context_bytes": seen, "own_bytes": own}) == bytes_


@pytest.mark.parametrize(("own", "least"), [([417, 411, 417], 411), ([417, 0, 417], 0), ([], 0)])
def test_what_nvml_tells_of_the_process_itself_shows_that_pods_can_be_policed(own: list[int], least: int) -> None:
    seen_bytes = verdict.of_sight({"own_bytes": own})
    assert seen_bytes == least
    proof = Proof(driver_version="580.1", library="l", ok=True, seen_bytes=seen_bytes)
    assert (verdict.not_policed(proof) == "") == bool(least)


def test_an_older_proof_says_nothing_about_policing() -> None:
    assert "not asked NVML" in verdict.not_policed(Proof(driver_version="580.1", library="l", ok=True))


def allocated(path: str, given: int, error: int = 2, **more: int) -> dict[str, Any]:
    return {"path": path, "bytes": given, "again": given, "error": error, "freed": 0} | more


PLAIN, MANAGED = allocated("cuMemAlloc", 1000), allocated("cuMemAllocManaged", 1000)


@pytest.mark.parametrize(
    ("lines", "state", "why"),
    [
        ([{"preloaded": False}, PLAIN, MANAGED], "holds", ""),
        ([{"preloaded": False}, PLAIN, allocated("cuMemAllocManaged", 1500, 0)], "managed-passes", "Managed gave 1500"),
        ([{"preloaded": False}, allocated("cuMemCreate", 1001), MANAGED], "fails", "cuMemCreate gave 1001"),
        ([{"preloaded": False}, PLAIN | {"again": 1001}], "fails", "cuMemAlloc gave 1001"),
        ([{"preloaded": False}, allocated("cuMemAlloc", 9)], "fails", "gave 9 bytes of 1000"),
        ([{"preloaded": False}, allocated("cuMemAlloc", 500, 700)], "fails", "ended with error 700"),
        ([{"preloaded": False}, PLAIN | {"freed": 1}], "fails", "freed with error 1"),
        ([{"preloaded": False}], "fails", "tried no allocation path"),
        ([{"preloaded": True}, PLAIN, MANAGED], "fails", "had loaded the interposer"),
        ([PLAIN, MANAGED], "fails", "had loaded the interposer"),
        ([], "fails", "had loaded the interposer"),
    ],
)
def test_the_drivers_limit_counts_for_each_path_of_a_program_without_the_library(
    lines: list[dict[str, Any]], state: str, why: str
) -> None:
    found, sentence = verdict.of_driver_limit(lines, 1000, 10)
    assert (found, why in sentence, bool(sentence)) == (state, True, bool(why))


def test_an_operators_figure_replaces_one_that_could_not_be_measured() -> None:
    proof = Proof(driver_version="580.1", library="l", ok=True)
    assert verdict.offered(proof, "580.1", "l", context_mib=0) == ""
    assert "context_mib" in verdict.offered(proof, "580.1", "l")


@pytest.mark.parametrize(
    ("shares", "ranked", "word"),
    [
        ((500, 480), False, ""),
        ((520, 250), False, "does not let them take turns"),
        ((990, 980), False, "cannot be told apart"),
        ((960, 30), True, ""),
        ((600, 380), True, "the lower one does not yield"),
        ((0, 900), True, "got 0 and 900"),
        ((0, 0), False, "got 0 and 0"),
    ],
)
def test_time_slicing_is_proven_by_the_shares_of_two_slices(shares: tuple[int, int], ranked: bool, word: str) -> None:
    lines = [{"done_ns": [0, share * 1_000_000, 0]} for share in shares]
    wrong, got = verdict.of_turns(lines, ranked)
    assert got == shares
    assert (word in wrong) if word else wrong == ""


def test_attempts_that_prove_nothing_become_rarer() -> None:
    assert [verdict.retry_after_s(n) for n in (1, 2, 3, 6, 7, 999)] == [60, 120, 240, 1800, 1800, 1800]


def test_a_proof_without_turns_does_not_offer_time_slicing() -> None:
    proof = Proof(driver_version="580.1", library="l", ok=True, context_bytes=0)
    assert "has not tried" in verdict.not_time_sliced(proof)
    assert verdict.not_time_sliced(Proof(driver_version="580.1", library="l", ok=True, turns_milli=(5, 5, 9, 0))) == ""


@pytest.mark.parametrize(("seen", "bytes_"), [(32 * MIB, 32 * MIB), (0, 0), (-1, 0), (1 << 40, 0)])
def test_an_implausible_pool_size_is_ignored(seen: int, bytes_: int) -> None:
    assert verdict.of_pools({"pool_chunk_bytes": seen}) == bytes_
