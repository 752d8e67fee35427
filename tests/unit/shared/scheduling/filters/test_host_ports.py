"""Host ports: which clash on a node, case by case."""

from __future__ import annotations

import pytest

from tests.unit.shared.scheduling.filters.verdict import ALWAYS, Spec, pod, verdict


def port(number: int, ip: str = "", protocol: str = "TCP") -> list[Spec]:
    return [{"name": "c", "ports": [{"containerPort": number, "hostPort": number, "hostIP": ip, "protocol": protocol}]}]


@pytest.mark.parametrize(
    ("behaviour", "wanted", "taken", "clash"),
    [
        ("the same port clashes", port(80), port(80), True),
        ("another port does not", port(80), port(81), False),
        ("another protocol does not", port(80), port(80, protocol="UDP"), False),
        ("another address does not", port(80, "10.0.0.1"), port(80, "10.0.0.2"), False),
        ("every address clashes with one", port(80), port(80, "10.0.0.2"), True),
        ("0.0.0.0 is every address", port(80, "10.0.0.1"), port(80, "0.0.0.0"), True),
        (
            "a container's port that is none of the host's is free",
            port(80),
            [{"name": "c", "ports": [{"containerPort": 80}]}],
            False,
        ),
    ],
)
def test_host_ports(behaviour: str, wanted: list[Spec], taken: list[Spec], clash: bool) -> None:
    assert verdict(pod(containers=wanted), pod("a", on="n", containers=taken)) == ("host-port" if clash else ""), (
        behaviour
    )
    assert verdict(pod(containers=wanted), pod("a", on="o", containers=taken)) == "", "on another node"


def test_a_sidecars_host_port_counts_and_an_init_containers_does_not() -> None:
    web = port(80)[0]
    assert verdict(pod(containers=[web]), pod("a", on="n", initContainers=[web | ALWAYS])) == "host-port"
    assert verdict(pod(containers=[web]), pod("a", on="n", initContainers=[web])) == ""
