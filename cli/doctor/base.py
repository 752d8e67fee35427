"""What a check of `kerf doctor` gets and returns."""

from __future__ import annotations

import os
from typing import Any, Literal, Protocol
from urllib.parse import urlencode

import msgspec

from shared.bus.nats_bus import NatsBus
from shared.contracts.queries import AboutAnswer, InspectNode
from shared.kube.transport import Transport, TransportError

Status = Literal["ok", "warn", "fail"]
PAGE = 500
"""Objects that the API server sends at a time."""


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. `do`: what to do about it; empty where it is well."""

    check: str
    status: Status
    text: str
    do: str = ""


class About(msgspec.Struct, frozen=True):
    """An instance of a service, and how far its clock is ahead of this machine's at least, in milliseconds; negative:
    behind."""

    answer: AboutAnswer
    ahead_ms: int = 0


class Site(msgspec.Struct, kw_only=True):
    """What all checks look at. What could not be reached has the reason instead."""

    url: str
    user: str
    """Of NATS; empty without one."""
    bus: NatsBus | None = None
    bus_error: str = ""
    services: tuple[About, ...] = ()
    services_error: str = ""
    nodes: tuple[InspectNode, ...] = ()
    nodes_error: str = ""
    leaderless: bool = False
    """Whether no placement answers questions: none leads."""
    kube: Transport | None = None
    kube_error: str = ""

    @property
    def simulated(self) -> bool:
        """Whether all nodes are simulated: there is no cluster behind them then."""
        return bool(self.nodes) and all(node.simulated for node in self.nodes)

    def connection(self, error: str = "") -> NatsBus:
        """The connection to NATS. Raises CannotLook without one, or for `error`: why a question over it failed."""
        if self.bus is None:
            raise CannotLook("there is no connection to NATS")
        if error:
            raise CannotLook(error)
        return self.bus

    async def get(self, path: str) -> Any:
        """A document of the API server, None where it does not exist. Raises CannotLook."""
        if self.kube is None:
            raise CannotLook(self.kube_error, "name a cluster by --kubeconfig")
        try:
            answer = await self.kube.request("GET", path)
        except TransportError as error:
            raise CannotLook(f"the API server does not answer: {error}") from error
        if answer.status == 404:
            return None
        if answer.status != 200:
            remedy = "give the account that asks the right to read it"
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                # In a pod, as by the krew plugin, it asks as that pod's account.
                remedy = "run `kerf doctor` on a machine with a kubeconfig: this pod's account may not read it"
            raise CannotLook(f"the API server answers {answer.status} to {path}", remedy)
        return msgspec.json.decode(answer.body)

    async def all(self, path: str, **selected: str) -> list[Any]:
        """Every object of a collection, page by page. Raises CannotLook."""
        found: list[Any] = []
        more = ""
        while True:
            query = selected | {"limit": str(PAGE)} | ({"continue": more} if more else {})
            page = await self.get(f"{path}?{urlencode(query)}")
            if page is None:
                return found
            found += page["items"]
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return found


class CannotLook(Exception):
    """A check has no access to what it looks at; the text says why, and `remedy` what to do."""

    def __init__(self, text: str, remedy: str = "give it access, and run it again") -> None:
        super().__init__(text)
        self.remedy = remedy


class Check(Protocol):
    """One file below this package, and one line in its `CHECKS`."""

    name: str

    async def run(self, site: Site) -> list[Finding]:
        """Raises CannotLook."""
