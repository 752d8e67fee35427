"""The yardsticks are the published ones, and Kerf's policy is above them."""

from __future__ import annotations

import csv

import pytest

from bench.openb.__main__ import DATA
from bench.openb.churn import churn
from bench.openb.fill import COLUMNS, fill
from bench.openb.trace import Arrivals, Trace, TraceNode, TracePod, read_arrivals, read_trace

SEED = 42


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(DATA / "openb_node_list_gpu_node.csv", DATA / "openb_pod_list_default.csv.gz")


@pytest.fixture(scope="module")
def arrivals() -> Arrivals:
    return read_arrivals(DATA / "arrivals_default.txt.gz")[SEED]


def published(policy: str) -> dict[int, float]:
    with (DATA / "published_runs.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["trace"], row["policy"], row["seed"]) == ("default", policy, str(SEED)):
                return {column: float(row[f"alloc_at_{column}"]) for column in COLUMNS}
    raise LookupError(policy)


@pytest.mark.parametrize(("policy", "name"), [("fgd", "FGD"), ("bestfit", "BestFit")])
def test_a_yardstick_gives_what_was_published(trace: Trace, arrivals: Arrivals, policy: str, name: str) -> None:
    ours = fill(trace, arrivals, SEED, policy).allocation_percent
    for column, expected in published(name).items():
        assert ours[str(column)] == pytest.approx(expected, abs=0.25)


def test_the_policy_kerf_allocates_more(trace: Trace, arrivals: Arrivals) -> None:
    ours = fill(trace, arrivals, SEED, "kerf").allocation_percent
    assert ours["100"] > published("FGD")[100] + 0.5
    assert ours["130"] > published("FGD")[130] + 0.5


def test_churn_counts_what_is_refused_by_size() -> None:
    """A node of two GPUs, pods of one and of two GPUs and one that never fits: nothing is lost from the account."""
    nodes = (TraceNode("n0", 64_000, 262_144, 2, "T4"),)
    pods = (TracePod(1000, 1024, 1, 1000, ""), TracePod(1000, 1024, 2, 1000, ""), TracePod(1000, 1024, 4, 1000, ""), TracePod(1000, 1024, 1, 250, ""))
    run = churn(Trace("small", nodes, pods), Arrivals((0, 1, 2, 3), (0,)), 1, "kerf", 2.0, lives=200)
    assert run.refused_percent["4-gpu"] == 100
    assert 0 < run.refused_percent["slice"] < run.refused_percent["2-gpu"] < 100
    assert 40 < run.allocation_percent < 100
    repeated = churn(Trace("small", nodes, pods), Arrivals((0, 1, 2, 3), (0,)), 1, "kerf", 2.0, lives=200)
    assert repeated.refused_percent == run.refused_percent
