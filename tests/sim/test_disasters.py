"""Rare and large faults. That the properties hold under them is in `test_sim.py`: a quarter of its worlds have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

from tests.sim.disasters import KINDS, REPAIRS
from tests.sim.simulation import Simulation


def _with_disasters() -> Iterator[Simulation]:
    worlds = map(Simulation, count())
    return (simulation for simulation in worlds if simulation.disasters.drawn and simulation.disasters.repaired)


def test_all_of_them_happen() -> None:
    happened: Counter[str] = Counter()
    for simulation in islice(_with_disasters(), 12):
        simulation.run()
        happened += simulation.disasters.happened
    assert set(happened) == {*KINDS, *REPAIRS}


def test_a_restored_etcd_has_the_objects_of_the_backup_and_no_version_twice() -> None:
    api = Simulation(0).api
    made = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    api.create("Pod", made, 0.0)
    backup, before = api.backup(), api.get("Pod", "p", "default")
    api.patch("Pod", "default", "p", {"metadata": {"labels": {"later": "yes"}}})
    api.create("Pod", {**made, "metadata": {"name": "q"}}, 0.0)
    newest = api.version
    differs = api.restore(backup, 1000)
    assert api.get("Pod", "p", "default") == before
    assert api.get("Pod", "q", "default") is None
    assert sorted((type(fact).__name__, fact.object.metadata.name) for fact in differs) == [("Gone", "q"), ("Put", "p")]
    _, touched = api.patch("Pod", "default", "p", {"metadata": {"labels": {"touched": "yes"}}})
    assert int(touched["metadata"]["resourceVersion"]) > newest
