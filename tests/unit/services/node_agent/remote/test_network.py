"""What an agent tells of the network: medians, and only what has changed by a fifth."""

from __future__ import annotations

from services.node_agent.remote.network import UNREACHED, Network
from shared.model.network import UNREACHABLE, NetworkLink


def link(rtt_us: int, mib_s: int = 1000) -> NetworkLink:
    return NetworkLink(rtt_us=rtt_us, mib_s=mib_s)


def test_the_first_measurement_is_told() -> None:
    network = Network()
    assert network.measured("a", link(100))
    assert network.told == {"a": link(100)}


def test_one_disturbed_measurement_changes_nothing() -> None:
    network = Network()
    for rtt in (100, 101, 99):
        network.measured("a", link(rtt))
    assert not network.measured("a", link(90_000))
    assert network.told == {"a": link(100)}


def test_a_network_that_stays_slower_is_told() -> None:
    network = Network(keep=3)
    network.measured("a", link(100))
    changes = [network.measured("a", link(200)) for _ in range(3)]
    assert changes == [True, True, False]
    assert network.told["a"].rtt_us == 200


def test_a_change_of_less_than_a_fifth_is_not_told() -> None:
    network = Network(keep=1)
    network.measured("a", link(100, 1000))
    assert not network.measured("a", link(119, 1190))
    assert network.measured("a", link(100, 700))


def test_nodes_that_are_not_measured_any_more_are_forgotten() -> None:
    network = Network()
    network.measured("a", link(100))
    network.measured("b", link(100))
    assert network.keep_only(["b"])
    assert set(network.told) == {"b"}
    assert not network.keep_only(["b"])


def test_a_node_that_is_not_reached_several_times_in_a_row_is_told_as_unreachable() -> None:
    """By its old figures pods would be placed there that never start."""
    network = Network()
    network.measured("a", link(100))
    assert [network.not_reached("a") for _ in range(UNREACHED + 1)] == [False] * (UNREACHED - 1) + [True, False]
    assert network.told == {"a": UNREACHABLE}
    assert network.measured("a", link(200)), "its first measurement counts by itself"
    assert network.told == {"a": link(200)}


def test_failures_that_are_not_in_a_row_change_nothing() -> None:
    network = Network()
    network.measured("a", link(100))
    for _ in range(UNREACHED):
        assert not network.not_reached("a")
        assert not network.measured("a", link(100))
    assert network.told == {"a": link(100)}
