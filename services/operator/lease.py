"""Which operator leads: a Lease of coordination.k8s.io. `decide` is pure; `Leader` renews and watches it.

The rules are client-go's: a Lease is taken when it has no holder, or when it has not changed for its duration by one's
own clock (the clocks of two nodes are never compared). https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal, NamedTuple

import msgspec

from services.operator.objects import LEASE, LEASE_NAME
from shared.kube.outcomes import outcome_of
from shared.kube.transport import Response, Transport, TransportError
from shared.model.kube_object import KubeObject, Meta
from shared.model.timestamps import micros_text


class LeaseSpec(KubeObject, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True):
    metadata: Meta = Meta()
    spec: LeaseSpec = LeaseSpec()


class Seen(NamedTuple):
    """A version of the Lease, and when it was first seen by one's own clock."""

    version: str = ""
    at_s: float = 0.0


def decide(lease: Lease | None, me: str, seen: Seen, now_s: float, lease_s: float) -> Literal["take", "renew", "wait"]:
    if lease is None or not lease.spec.holder_identity:
        return "take"
    if lease.spec.holder_identity == me:
        return "renew"
    return "take" if now_s - seen.at_s > (lease.spec.lease_duration_seconds or lease_s) else "wait"


class Leader:
    """Run `run`; `leading` says whether this process leads, `changed` is set when that changes."""

    def __init__(self, transport: Transport, namespace: str, me: str, log: Any, *, lease_s: float) -> None:
        self.leading = False
        self.changed = asyncio.Event()
        self.problem = ""
        """Why the last attempt to take or renew the Lease failed; empty where the API server answered as it should."""
        self._transport, self._namespace, self._me, self._log, self._lease_s = transport, namespace, me, log, lease_s
        self._seen = Seen()
        self._renewed_at_s = 0.0
        self._ends = False

    async def run(self) -> None:
        """Until cancelled, or released."""
        while not self._ends:
            try:
                # A third of the Lease's life, so that two answers may be lost.
                async with asyncio.timeout(self._lease_s / 3):
                    await self._step()
                self.problem = ""
            except (TransportError, TimeoutError) as error:
                self.problem = str(error) or "no answer in time"
                self._log.warning("lease_unsure", error=self.problem)
            if self.leading and _now() - self._renewed_at_s > self._lease_s * 0.75:
                self._set(leading=False)
            await asyncio.sleep(self._lease_s / 3)

    async def _step(self) -> None:
        path = LEASE.path(LEASE_NAME, self._namespace)
        started = _now()
        response = await self._transport.request("GET", path)
        if response.status not in (200, 404):
            raise _refusal(response)
        lease = msgspec.json.decode(response.body, type=Lease) if response.status == 200 else None
        version = "" if lease is None else lease.metadata.resource_version
        if version != self._seen.version:
            self._seen = Seen(version, started)
        action = decide(lease, self._me, self._seen, started, self._lease_s)
        if action == "wait" or self._ends:
            self._set(leading=False)
            return
        body = msgspec.json.encode(_renewed(lease, self._me, self._namespace, self._lease_s, action))
        if lease is None:
            response = await self._transport.request("POST", LEASE.collection(self._namespace), body)
        else:
            response = await self._transport.request("PUT", path, body)
        if response.status in (200, 201):
            self._renewed_at_s = started
            self._set(leading=True)
        elif response.status == 409:
            self._set(leading=False)  # another was quicker, or it has just been deleted
        else:
            raise _refusal(response)

    def _set(self, *, leading: bool) -> None:
        if leading != self.leading:
            self.leading = leading
            self._log.info("lease_won" if leading else "lease_lost")
            self.changed.set()

    async def release(self) -> None:
        """Gives the Lease up, so that the other operator need not wait for its end, and does not take it again."""
        self._ends = True
        if not self.leading:
            return
        self.leading = False
        path = LEASE.path(LEASE_NAME, self._namespace)
        try:
            response = await self._transport.request("GET", path)
            lease = msgspec.json.decode(response.body, type=Lease) if response.status == 200 else None
            if lease is not None and lease.spec.holder_identity == self._me:
                given_up = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
                body = _body(lease, self._namespace, given_up)
                await self._transport.request("PUT", path, msgspec.json.encode(body))
        except TransportError as error:
            self._log.info("lease_left_to_expire", error=str(error))


def _refusal(response: Response) -> TransportError:
    """With the API server's own sentence."""
    return TransportError(f"HTTP {response.status}: {outcome_of(response).message}")


def _renewed(lease: Lease | None, me: str, namespace: str, lease_s: float, action: str) -> dict[str, Any]:
    when = micros_text(time.time())
    spec = LeaseSpec() if lease is None else lease.spec
    taken = action == "take"
    return _body(
        lease,
        namespace,
        LeaseSpec(
            holder_identity=me,
            lease_duration_seconds=max(1, round(lease_s)),
            acquire_time=when if taken else spec.acquire_time,
            renew_time=when,
            lease_transitions=(spec.lease_transitions or 0) + (taken and lease is not None),
        ),
    )


def _body(lease: Lease | None, namespace: str, spec: LeaseSpec) -> dict[str, Any]:
    metadata = {"name": LEASE_NAME, "namespace": namespace}
    if lease is not None:
        metadata["resourceVersion"] = lease.metadata.resource_version
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
