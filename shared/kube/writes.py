"""Every write that Kerf makes in Kubernetes, by what it writes."""

from __future__ import annotations

from shared.kube.binding_writes import BindingWrites
from shared.kube.device_writes import DeviceWrites
from shared.kube.event_writes import EventWrites
from shared.kube.group_writes import GroupWrites
from shared.kube.object_writes import ObjectWrites
from shared.kube.outcomes import WRITE_TIMEOUT_S
from shared.kube.pod_writes import PodWrites
from shared.kube.resources import Resource
from shared.kube.sender import Sender
from shared.kube.transport import Transport, TransportError


class Writes:
    """Writes through a transport. None raises on a failure of server or network: the outcome says it."""

    def __init__(self, transport: Transport, *, reporter: str, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        self._transport, self._timeout_s = transport, timeout_s
        send = Sender(transport, timeout_s=timeout_s).send
        self.bindings = BindingWrites(send)
        self.pods = PodWrites(send)
        self.groups = GroupWrites(transport, send)
        self.objects = ObjectWrites(send)
        self.events = EventWrites(send, reporter=reporter)
        self.devices = DeviceWrites(transport, timeout_s=timeout_s)
        """Of dynamic resource allocation."""

    async def is_missing(self, resource: Resource, name: str, namespace: str = "") -> bool:
        """Whether there is no such object by the server's answer of now: what the watches have not shown yet may
        exist. False where there is no answer."""
        try:
            response = await self._transport.request("GET", resource.path(name, namespace), timeout_s=self._timeout_s)
        except TransportError:
            return False
        return response.status == 404
