"""A recording on other nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shadow.history import History, read_history
from shadow.plan import FleetError, Kind, plan, read_fleet
from tests.support import shadow
from tests.support.command import Command
from tests.support.shadow import BEGAN_S, Recording

TWO = {"nvidia.com/gpu": "2"}
DATA = Path(__file__).resolve().parents[2] / "data" / "shadow"


def history() -> History:
    """Four pods of two GPUs come at once and run for ten seconds; there they run one after another."""
    recording = Recording(shadow.node("n1", shadow.gfd(2)))
    names = ("a", "b", "c", "d")
    recording.seen(0, *(shadow.pod(name, TWO) for name in names))
    for number, name in enumerate(names):
        recording.seen(10 * number + 1, shadow.pod(name, TWO, on="n1"))
        recording.seen(10 * number + 11, shadow.pod(name, TWO, on="n1", phase="Succeeded"))
    return read_history(recording.ended(60))


def kind(**more: object) -> Kind:
    return Kind(**({"model": "T4", "memory_mib": 16_384, "gpus": 2} | more))  # type: ignore[arg-type]


def test_waits_on_given_nodes_are_those_that_a_person_would_count() -> None:
    made = plan(history(), (kind(count=2),), "kerf")
    assert (made.pods, made.planned.nodes, made.planned.gpus) == (4, 2, 4)
    # Two start at once, the two others ten seconds later.
    assert (made.planned.kerf.mean_wait_s, made.planned.kerf.max_wait_s) == (5.0, 10.0)
    assert [one.wait_s for one in made.planned.longest] == [10.0, 10.0]
    assert "0 of 2 nodes can take the pod" in made.planned.longest[0].why
    assert made.enough is None


@pytest.mark.parametrize(("enough_s", "nodes"), [(0.0, 4), (10.0, 2), (20.0, 2), (30.0, 1)])
def test_the_fewest_nodes_that_are_enough(enough_s: float, nodes: int) -> None:
    made = plan(history(), (kind(count=1),), "kerf", enough_s)
    assert made.enough is not None
    assert made.enough.counts == (nodes,)
    assert made.enough.kerf.p99_wait_s <= enough_s


def test_a_pod_that_fits_on_no_node_of_the_kind_is_never_served() -> None:
    made = plan(history(), (kind(gpus=1),), "kerf", 10.0)
    assert made.enough is None
    assert [one.started for one in made.planned.longest] == [False] * 4


def test_several_kinds_and_labels_are_read() -> None:
    kinds = read_fleet("- {model: A, memory_mib: 1000, gpus: 4, labels: {pool: a}}\n- {model: B, memory_mib: 2000}\n")
    assert [(one.model, one.gpus, one.count, one.labels) for one in kinds] == [
        ("A", 4, 1, {"pool": "a"}),
        ("B", 8, 1, {}),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: 1",
        "- {model: A}",
        "- {model: A, memory_mib: 0}",
        "- {model: A, memory_mib: 99999999999}",
        "- {model: A, memory_mib: 1, gpu: 1}",
        "- {model: A, memory_mib: 1, cpu: sixtyfour}",
        "- {model: A, memory_mib: 1, memory: 1024GiB}",
        "- {model: A, memory_mib: 1, memory: -1}",
    ],
)
def test_a_file_that_is_no_fleet_says_what_to_write(text: str) -> None:
    with pytest.raises(FleetError):
        read_fleet(text)


def test_a_node_has_the_cpus_and_memory_that_are_written() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2))).seen(0, shadow.pod("a", TWO | {"cpu": "65"}))
    seen = read_history(recording.ended(9))
    for cpu, started in (("64", 0), ("65", 1), ("65500m", 1)):
        kinds = read_fleet(f"- {{model: A, memory_mib: 1000, gpus: 2, cpu: {cpu}}}")
        assert plan(seen, kinds, "kerf").planned.kerf.pods_started == started


async def test_the_command_prints_both_fleets(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("- {model: NVIDIA-A100-PCIE-40GB, memory_mib: 40960, gpus: 2, count: 2}\n")
    arguments = ("plan", "--events", str(DATA / "kai.jsonl"), "--nodes", str(fleet), "--enough", "60s")
    done = await (await Command.start(*arguments)).done()
    assert done.code == 0, done.err
    assert "AS GIVEN" in done.out
    said = json.loads((await (await Command.start(*arguments, "--json")).done()).out)
    assert (said["planned"]["nodes"], said["enough"]["nodes"]) == (2, 3)
    fleet.write_text("- {model: A}\n")
    wrong = await (await Command.start(*arguments)).done()
    assert (wrong.code, "such as - {model:" in wrong.err) == (1, True)


def test_no_nodes_are_never_enough() -> None:
    """The pods end there, and would wait for ever here."""
    found = plan(history(), (Kind(model="T4", memory_mib=16_384, gpus=2, count=1),), "kerf", 35.0).enough
    assert found is not None
    assert found.counts == (1,)


def test_pods_that_ran_before_need_their_place_too() -> None:
    """They are not in the percentile of the waits, for those there are not known."""
    old = [shadow.pod(f"old{index}", TWO, on=f"n{index}", created_s=BEGAN_S - 50) for index in (0, 1)]
    recording = Recording(*(shadow.node(f"n{index}", shadow.gfd(2)) for index in (0, 1))).seen(0, *old)
    recording.seen(90, shadow.pod("old0", TWO, on="n0", created_s=BEGAN_S - 50, phase="Succeeded"))
    made = plan(read_history(recording.ended(100)), (kind(),), "kerf", 60.0)
    assert [(one.pod, one.wait_s, one.started) for one in made.planned.longest] == [("team/old1", 90.0, True)]
    assert made.enough is not None
    assert made.enough.counts == (2,)


def test_a_recording_shorter_than_the_wait_asked_for_excuses_no_pod() -> None:
    recording = Recording(shadow.node("n1", shadow.gfd(2))).seen(5, shadow.pod("a", TWO))
    made = plan(read_history(recording.seen(6, shadow.pod("a", TWO, on="n1")).ended(55)), (kind(),), "kerf", 60.0)
    assert made.enough is not None
    assert made.enough.counts == (1,)
