from __future__ import annotations

from shared.book.book import Book
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.objects import Pod
from shared.scheduling.filters.base import Check, Filter

_ANY = "0.0.0.0"  # noqa: S104


class HostPorts(Filter):
    """A host port is free once per protocol and address; the address 0.0.0.0 (or none) clashes with every other."""

    name = "host-ports"
    scope = "cluster"

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        wanted = host_ports(pod.pod)
        if not wanted:
            return None

        def check(node: NodeState) -> Reason | None:
            for other in node.pods.values():
                for port in host_ports(other.pod):
                    if any(_clash(port, mine) for mine in wanted):
                        return Reason(
                            code="host-port",
                            sentence=f"host port {port[1]}/{port[2]} is taken by {other.key}",
                            helps=f"use another host port than {port[1]}",
                        )
            return None

        return check


def host_ports(pod: Pod) -> list[tuple[str, int, str]]:
    """(address, port, protocol) of every host port of its running containers, sidecars too."""
    if not pod.spec.host_network and not any(c.ports for c in pod.spec.containers) and not pod.spec.init_containers:
        return []
    running = (*pod.spec.containers, *(c for c in pod.spec.init_containers if c.restart_policy == "Always"))
    return [
        (port.host_ip or _ANY, port.host_port or port.container_port, port.protocol or "TCP")
        for container in running
        for port in container.ports
        if port.host_port or pod.spec.host_network
    ]


def _clash(a: tuple[str, int, str], b: tuple[str, int, str]) -> bool:
    return a[1:] == b[1:] and (a[0] == b[0] or _ANY in (a[0], b[0]))
