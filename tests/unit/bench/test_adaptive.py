"""The bench of strategies: what it measures follows from the jobs alone, and from nothing that placement predicts."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from bench.adaptive import replay, truth
from bench.adaptive.__main__ import main
from bench.adaptive.apps import APPS, BY_NAME, beside
from bench.adaptive.fleet import BY_NAME as MACHINE
from bench.adaptive.fleet import make_book
from bench.adaptive.replay import ABLATION, SETUPS, Replay, make_jobs
from bench.adaptive.truth import Link, Running, Truth
from shared.model import names


def running(app: str, strategy: str, model: str = "V100", **rest: float) -> Running:
    return Running(0, BY_NAME[app], strategy, model, **rest)


def test_the_same_seed_gives_the_same_figures() -> None:
    jobs = make_jobs(3, 40, 2.0)
    assert jobs == make_jobs(3, 40, 2.0) != make_jobs(4, 40, 2.0)
    adaptive = SETUPS[-1]
    assert Replay(adaptive, 3).run(jobs) == Replay(adaptive, 3).run(jobs)


def test_every_strategy_runs_every_job_and_loses_no_gpu() -> None:
    jobs = make_jobs(1, 60, 2.0)
    for setup in SETUPS:
        run = Replay(setup, 1)
        outcome = run.run(jobs)
        assert sum(outcome.by_strategy.values()) + outcome.refused == len(jobs)
        assert outcome.refused == 0
        assert not run._engine.book.grants
        assert outcome.mean_slowdown > 0
        assert (outcome.remote_bytes > 0) == ("remote" in outcome.by_strategy)


def test_the_truth_shares_no_code_with_the_prediction() -> None:
    for module in (truth, sys.modules["bench.adaptive.apps"]):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(name.startswith(("shared", "services")) for name in imported)


def test_all_pairs_of_programs_are_known() -> None:
    for one in APPS:
        for other in APPS:
            assert 0.3 <= beside(one, other) <= 1
    assert (beside(BY_NAME["CycleGAN"], BY_NAME["LM"]), beside(BY_NAME["LM"], BY_NAME["CycleGAN"])) == (0.83, 0.48)


def test_rates_of_a_job() -> None:
    """With errors of zero: what the module's docstring says, by hand."""
    real = Truth(0)
    real._error = lambda *_: 1.0  # type: ignore[method-assign]
    hpl = running("HPL", "exclusive")
    assert real.rate(hpl, []) == pytest.approx(1)
    assert real.rate(running("HPL", "exclusive", "H100"), []) == pytest.approx(1 / (0.98 / 2.8 + 0.02))
    assert real.rate(running("HPL", "interposer", share=0.5), []) == pytest.approx(0.5 / 0.98, rel=1e-3)
    two = [running("HPL", "time_slice")]
    assert 0.4 < real.rate(running("HPL", "time_slice"), two) < 0.47
    assert real.rate(running("LM", "mps"), [running("CycleGAN", "mps")]) == pytest.approx(0.48, rel=0.01)
    assert real.rate(running("HPL", "mig", share=0.49), []) == pytest.approx(0.5, rel=0.01)
    far = running("GROMACS-small", "interposer")
    far.link = Link(rtt_us=40, mib_s=10_000)
    assert real.rate(far, []) == pytest.approx(0.96 / (1 + 25_000 * 40e-6 * 1.15 + 0.004), rel=0.01)


def test_a_fault_under_mps_costs_the_neighbours_too() -> None:
    lost = {}
    for name in ("mps", "exclusive"):
        setup = next(one for one in SETUPS if one.name == name)
        run = Replay(setup, 1)
        jobs = [one for one in make_jobs(1, 30, 30.0) if not one.firm]
        for job in jobs[:20]:
            run._place(job)
        shared = max(run._on.values(), key=len)
        run._advance(500.0)
        hit = sorted(shared)[0]
        run._live[hit].job = replay.msgspec.structs.replace(run._live[hit].job, faults_at=0.5)
        assert run._fault(hit)
        lost[name] = sum(live.since_checkpoint_s == 0 for live in run._live.values())
    assert lost["exclusive"] == 1 < lost["mps"]


def test_the_fleet_has_all_kinds_of_nodes() -> None:
    mixed = make_book(None)
    offers = {node.inventory.strategies for node in mixed.nodes.values() if node.inventory is not None}
    assert offers == {("exclusive", "mig"), ("exclusive", "mps"), ("exclusive", "interposer", "time_slice")}
    assert any(not machine.gpus for machine in MACHINE.values())


def test_one_object_on_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["adaptive", "--jobs", "15", "--seeds", "1", "--json"])
    main()
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["strategies"]) == {setup.name for setup in SETUPS}
    keys = {"throughput", "mean_slowdown", "p99_slowdown", "beyond_bound", "remote_bytes", "refused"}
    assert all(set(found) == keys for found in (printed["strategies"] | printed["ablation"]).values())
    assert set(printed["ablation"]) == {setup.name for setup in ABLATION}


def test_single_strategies_are_weighed_with_the_profiles_and_the_bound_that_adaptive_has() -> None:
    jobs = make_jobs(1, 3, 2.0)
    adaptive = Replay(SETUPS[-1], 1)._notes(jobs[0], "memory")
    for setup in ABLATION:
        notes = Replay(setup, 1)._notes(jobs[0], "memory")
        assert (names.ANNOTATION_MAX_SLOWDOWN in notes) == (setup.bound or setup.remote)
        weighed = {names.ANNOTATION_GPU_USE, names.ANNOTATION_MAX_SLOWDOWN} & set(notes)
        assert not setup.profile or all(notes[key] == adaptive[key] for key in weighed)
