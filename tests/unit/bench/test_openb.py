"""The reference values are the published ones, and Kerf's policy is above them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from bench.openb.__main__ import DATA, main
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
    """A node of two GPUs, pods of one and of two GPUs and one that never fits: all GPUs are accounted for."""
    nodes = (TraceNode("n0", 64_000, 262_144, 2, "T4"),)
    pods = (
        TracePod(1000, 1024, 1, 1000, ""),
        TracePod(1000, 1024, 2, 1000, ""),
        TracePod(1000, 1024, 4, 1000, ""),
        TracePod(1000, 1024, 1, 250, ""),
    )
    run = churn(Trace("small", nodes, pods), Arrivals((0, 1, 2, 3), (0,)), 1, "kerf", 2.0, lives=200)
    assert run.refused_percent["4-gpu"] == 100
    assert 0 < run.refused_percent["slice"] < run.refused_percent["2-gpu"] < 100
    assert 40 < run.allocation_percent < 100
    repeated = churn(Trace("small", nodes, pods), Arrivals((0, 1, 2, 3), (0,)), 1, "kerf", 2.0, lives=200)
    assert repeated.refused_percent == run.refused_percent


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,T4\nn1,64000,262144,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1024,1,1000\np1,1000,1024,1,37\n"
ARRIVALS = "P 7 0 1\nN 7 0\n"


@pytest.mark.parametrize(
    ("nodes", "pods", "arrivals", "more", "sentence"),
    [
        ("", PODS, ARRIVALS, [], "nodes has no column sn"),
        (NODES, "", ARRIVALS, [], "pods has no column name"),
        (NODES, PODS, "", [], "must have a line P"),
        (NODES, PODS, "P 7 0 1\n", [], "must have a line P"),
        (NODES, PODS, "P 7 0 one\nN 7 0\n", [], "line 1: name P or N"),
        (NODES, PODS, "P 7 0 1\n\nN 7 0\n", [], "line 2: name P or N"),
        (NODES, PODS, "P 7 0 2\nN 7 0\n", [], "its pods go up to number 2, and the list has 2"),
        (NODES, PODS, "P 7 0 1\nN 7 0 1\n", [], "it ranks 2 nodes with GPUs, and the list has 1"),
        (NODES, PODS, ARRIVALS, ["--seeds", "8"], "the arrivals file has no seed 8; it has 7"),
        (NODES, PODS, ARRIVALS, ["--churn", "0"], "name a load above 0"),
        (NODES, PODS, ARRIVALS, ["--churn", "-1"], "name a load above 0"),
        (None, PODS, ARRIVALS, [], "No such file"),
    ],
)
def test_invalid_files_are_refused_with_a_sentence(
    nodes: str | None, pods: str, arrivals: str, more: list[str], sentence: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    given = []
    for name, text in (("nodes", nodes), ("pods", pods), ("arrivals", arrivals)):
        given += [f"--{name}", str(tmp_path / name)]
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["bench.openb", *given, "--json", *more])
    with pytest.raises(SystemExit) as stopped:
        main()
    output = capsys.readouterr()
    assert stopped.value.code == 2
    assert output.out == ""
    assert sentence in output.err


def test_a_load_that_no_arrival_reaches_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []
    for name, text in (("nodes", NODES), ("pods", PODS), ("arrivals", "P 7 1 0 0\nN 7 0\n")):
        (tmp_path / name).write_text(text)
        given += [f"--{name}", str(tmp_path / name)]
    monkeypatch.setattr(sys, "argv", ["bench.openb", *given, "--json"])
    main()
    (run,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["runs"]
    assert run["decisions"] == 3
    assert set(run["allocation_percent"].values()) == {None}
