"""The strategies as data: what placement, the device gate and the suspensions derive from their descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared import plugins
from shared.model.strategies import (
    ALWAYS_OFFERED,
    BUILT_IN,
    MIG,
    NAMES,
    POLICED,
    PROVEN_BY_CANARY,
    REMOTE,
    by_preference,
    registered,
)
from shared.model.strategy import Isolation, Strategy

ROOT = Path(__file__).resolve().parents[4]


def names(*, whole: bool = False, reserves_compute: bool, isolation: Isolation = "soft") -> list[str]:
    return [strategy.name for strategy in by_preference(whole, reserves_compute, isolation)]


def test_the_strongest_promise_comes_first_and_time_slicing_where_no_compute_is_reserved() -> None:
    assert names(reserves_compute=True) == ["interposer", "time_slice", "mps", "advisory"]
    assert names(reserves_compute=False) == ["time_slice", "interposer", "mps", "advisory"]
    assert names(whole=True, reserves_compute=True) == ["exclusive"]


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("soft", ["interposer", "time_slice", "mps", "advisory"]),
        ("firm", ["interposer", "time_slice"]),
        ("policed", ["policed"]),
        ("hard", []),
    ],
)
def test_a_pod_gets_what_keeps_its_isolation_and_is_ended_only_if_it_asked_for_that(
    isolation: Isolation, expected: list[str]
) -> None:
    assert names(reserves_compute=True, isolation=isolation) == expected
    assert names(whole=True, reserves_compute=True, isolation=isolation) == ["exclusive"]


def test_the_driver_holds_memory_and_is_not_for_pods_that_reserve_gpu_time() -> None:
    assert names(reserves_compute=False, isolation="hard") == ["driver"]
    assert names(reserves_compute=False, isolation="policed") == ["policed"]


def test_what_a_node_must_prove_and_what_it_always_offers() -> None:
    proven = {strategy.name for strategy in BUILT_IN if strategy.proof != "none"}
    assert proven == {"interposer", "time_slice", "policed", "driver", "mps", "remote"}
    assert PROVEN_BY_CANARY == ("interposer", "time_slice", "policed", "driver")
    assert (ALWAYS_OFFERED, POLICED, MIG, REMOTE) == (("exclusive", "advisory"), ("policed",), "mig", "remote")


def test_each_strategy_has_one_name_and_its_promise() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {strategy.name: strategy.promise for strategy in registered().values()} == {
        "exclusive": "hard",
        "mig": "hard",
        "interposer": "firm",
        "time_slice": "firm",
        "policed": "policed",
        "driver": "hard",
        "mps": "soft",
        "remote": "hard",
        "advisory": "soft",
    }


def test_every_driver_that_a_strategy_names_is_a_class_of_the_node_agent() -> None:
    for strategy in BUILT_IN:
        if strategy.driver:
            assert isinstance(plugins.resolve(strategy.driver), type)


@pytest.mark.parametrize(
    "wrong", [{"promise": "harder"}, {"only_from": "softer"}, {"unit": "half"}, {"proof": "maybe"}, {"name": ""}]
)
def test_a_strategy_with_a_wrong_field_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"strategy"):
        Strategy(**({"name": "x", "promise": "soft"} | wrong))  # type: ignore[arg-type]


def test_no_other_table_of_strategies_is_left() -> None:
    """A list of strategy names elsewhere would have to change with every new strategy."""
    sources = [
        path
        for folder in ("services", "shared", "cli")
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in ("strategies.py", "examples.py", "example_objects.py", "precompile.py")
    ]
    named = [f'"{name}"' for name in ("exclusive", "interposer", "time_slice", "advisory")]
    assert [str(path) for path in sources if any(name in path.read_text() for name in named)] == []
