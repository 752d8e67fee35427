"""Removes what Kerf has made beside its manifests: `python -m services.operator uninstall [--all]`.

It runs after the manifests are gone (a post-delete hook of the chart): a running operator would heal what it removes,
and running watchers would write labels again. What is left, and why, is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from services.operator import enrolment
from services.operator.conditions import LISTED
from services.operator.config import Config
from services.operator.lease import Leader
from services.operator.objects import (
    CONFIG_MAP,
    CONFIG_MAPS,
    LEASE,
    LEASE_NAME,
    SCHEDULERS,
    SECRET,
    SECRETS,
    TERMINAL,
    WEBHOOKS,
    ConfigMap,
    Node,
    Pod,
    WebhookConfiguration,
)
from services.operator.observed import PART_OF
from shared.formats import UNREADABLE
from shared.kube.client import connect
from shared.kube.outcomes import Result
from shared.kube.resources import CLAIM, DEVICE_SLICE, NODE, POD, Resource
from shared.kube.sender import Sender
from shared.kube.transport import MERGE_PATCH, STRATEGIC_PATCH, Transport, TransportError
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.kube_object import KubeObject, Meta
from shared.model.suspension import annotated_suspension, decode_suspension, goes_to_host
from shared.service import ConfigError, read_config

WAIT_S = 60.0
POLL_S = 0.5
_LABEL = "app.kubernetes.io%2Fpart-of%3Dkerf"


class Named(KubeObject, frozen=True):
    metadata: Meta = Meta()


class _ListMeta(KubeObject, frozen=True):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(KubeObject, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] = ()


class StillRunning(Exception):
    """An operator holds the Lease, and would undo what is done here. Not raised where the API server gives no Lease."""


class Uninstall:
    """`say` gets one sentence for each thing that was removed, left, or could not be removed."""

    def __init__(
        self, transport: Transport, config: Config, say: Callable[[str], None], log: Any, *, wait_s: float = WAIT_S
    ) -> None:
        self._transport, self._config, self._say, self._wait_s = transport, config, say, wait_s
        self._send = Sender(transport).send
        self._leader = Leader(transport, config.namespace, "uninstall", log, lease_s=config.lease_s)
        self._failed = 0

    async def run(self, *, everything: bool = False) -> bool:
        """Whether all was removed. Raises StillRunning, and TransportError where the API server does not answer.

        everything: also ConfigMap kerf-schedulers where an administrator has changed it.
        """
        holding = asyncio.create_task(self._leader.run())
        try:
            await self._take_over()
            await self._wait_for_pods()
            await self._nodes()
            await self._slices()
            await self._webhook()
            await self._own_objects(everything=everything)
            await self._say_what_is_left()
        finally:
            holding.cancel()
            await asyncio.wait({holding})
        await self._delete(LEASE, LEASE_NAME)
        return not self._failed

    async def _take_over(self) -> None:
        if await self._until(lambda: self._leader.leading):
            return
        lease = f"Lease {LEASE_NAME} in namespace {self._config.namespace}"
        if self._leader.problem:
            raise TransportError(f"{lease} cannot be taken: {self._leader.problem}")
        raise StillRunning(
            f"{lease} is held by a running operator, which would put everything back; delete Deployment kerf-operator "
            "first (helm uninstall does so)"
        )

    async def _wait_for_pods(self) -> None:
        left: list[Pod] = []

        async def none_left() -> bool:
            left[:] = await self._list(POD, Pod, f"labelSelector={_LABEL}", self._config.namespace)
            return not left

        if not await self._until(none_left):
            pods = ", ".join(sorted(pod.metadata.name for pod in left))
            self._say(f"pods of Kerf still run and may write labels of nodes again: {pods}")

    async def _nodes(self) -> None:
        for listed in await self._list(NODE, Node):
            node: Node | None = listed
            while node is not None and (write := enrolment.release_for_good(node, self._config.watcher_account)):
                path = NODE.path(write.name)
                result = await self._send("PATCH", path, write.body, content_type=MERGE_PATCH)
                if result.outcome != "conflict":
                    self._note(result, f"node {write.name}: taints and labels of Kerf")
                    break
                node = await self._get(NODE, write.name, Node)

    async def _slices(self) -> None:
        for found in await self._list(DEVICE_SLICE, Named, f"fieldSelector=spec.driver%3D{names.DRA_DRIVER}"):
            await self._delete(DEVICE_SLICE, found.metadata.name)

    async def _webhook(self) -> None:
        name = self._config.webhook
        found = await self._get(WEBHOOKS, name, WebhookConfiguration) if name else None
        trusting = [w.name for w in found.webhooks if w.client_config.ca_bundle] if found is not None else []
        if trusting:
            body = {"webhooks": [{"name": one, "clientConfig": {"caBundle": None}} for one in trusting]}
            result = await self._send("PATCH", WEBHOOKS.path(name), body, content_type=STRATEGIC_PATCH)
            self._note(result, f"caBundle of MutatingWebhookConfiguration {name}")

    async def _own_objects(self, *, everything: bool) -> None:
        """Only what carries the operator's label: what users have made is theirs."""
        for resource, every in ((SECRET, SECRETS), (CONFIG_MAP, CONFIG_MAPS)):
            for name in every:
                found = await self._get(resource, name, ConfigMap)
                if found is None:
                    continue
                if not found.metadata.labels.items() >= PART_OF.items():
                    self._say(f"left: {resource.kind} {name}, which the operator has not made")
                elif name == SCHEDULERS and found.data.get("accounts") != LISTED and not everything:
                    self._say(f"left: ConfigMap {name}, which an administrator has changed; --all removes it too")
                else:
                    await self._delete(resource, name)

    async def _say_what_is_left(self) -> None:
        for claim in await self._list(CLAIM, Named, f"labelSelector={_LABEL}", self._config.namespace):
            name = claim.metadata.name
            self._say(
                f"left: PersistentVolumeClaim {name}, with recorded usage or the log; "
                f"kubectl -n {self._config.namespace} delete pvc {name}"
            )
        for sentence in left_pods(await self._list(POD, Pod)):
            self._say(sentence)
        self._say("left: /var/lib/kerf on the nodes, with the interposer that running containers have mounted")

    # --- the API server -----------------------------------------------------------------------------------------------

    async def _until(self, check: Callable[[], Any]) -> bool:
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            value = check()
            if await value if asyncio.iscoroutine(value) else value:
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(POLL_S)

    async def _list(self, resource: Resource, kind: type[Any], query: str = "", namespace: str = "") -> list[Any]:
        found: list[Any] = []
        more = ""
        while True:
            asked = "&".join(part for part in (query, "limit=500", f"continue={more}" if more else "") if part)
            response = await self._transport.request("GET", f"{resource.collection(namespace)}?{asked}")
            if response.status == 404 and resource.optional:
                return []
            if response.status != 200:
                raise TransportError(f"listing {resource.plural}: HTTP {response.status}: {response.body[:200]!r}")
            page = msgspec.json.decode(response.body, type=_Page)
            found += [msgspec.json.decode(item, type=kind) for item in page.items]
            more = page.metadata.continue_
            if not more:
                return found

    async def _get(self, resource: Resource, name: str, kind: type[Any]) -> Any:
        """None where there is none."""
        response = await self._transport.request("GET", resource.path(name, self._config.namespace))
        if response.status == 404:
            return None
        if response.status != 200:
            raise TransportError(f"reading {resource.kind} {name}: HTTP {response.status}: {response.body[:200]!r}")
        return msgspec.json.decode(response.body, type=kind)

    async def _delete(self, resource: Resource, name: str) -> None:
        result = await self._send("DELETE", resource.path(name, self._config.namespace), {})
        if result.outcome != "gone":
            self._note(result, f"{resource.kind} {name}")

    def _note(self, result: Result, what: str) -> None:
        if result.outcome in ("done", "gone"):
            self._say(f"removed: {what}")
        else:
            self._failed += 1
            self._say(f"not removed: {what}: {result.message}")


def left_pods(pods: list[Pod]) -> list[str]:
    """What to say of pods that Kerf has placed and that have not ended; and of those that need more of it."""
    using = [
        pod
        for pod in pods
        if names.ANNOTATION_GRANT in pod.metadata.annotations
        and pod.spec.node_name
        and pod.status.phase not in TERMINAL
    ]
    said = []
    running = [pod for pod in using if pod.status.phase == "Running"]
    if running:
        said.append(f"left: {len(running)} running pods keep the GPUs that Kerf gave them until they end")
    if claiming := [pod for pod in using if _has_claim(pod)]:
        said.append(
            "left: pods with GPUs of ResourceClaims, which a kubelet cannot end without Kerf's driver; install Kerf "
            f"again, delete them, and remove it when they are gone: {_named(claiming)}"
        )
    if away := [pod for pod in using if _is_on_host(pod)]:
        said.append(
            "left: pods with their GPU memory on the host, which nothing continues; delete them, or install Kerf "
            f"again: {_named(away)}"
        )
    return said


def _has_claim(pod: Pod) -> bool:
    """Also where its grant cannot be read."""
    try:
        grant = decode_grant(pod.metadata.annotations[names.ANNOTATION_GRANT])
    except UNREADABLE:
        return True
    return any(part.claim for part in grant.containers.values())


def _is_on_host(pod: Pod) -> bool:
    """Also where its suspension cannot be read."""
    text = annotated_suspension(pod.metadata.annotations)
    try:
        return bool(text) and goes_to_host(decode_suspension(text))
    except UNREADABLE:
        return True


def _named(pods: list[Pod]) -> str:
    return ", ".join(sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods))


def main(arguments: list[str]) -> None:
    """Exits with 0 where all was removed, 1 where not, 2 for wrong settings."""
    parser = argparse.ArgumentParser(prog="python -m services.operator uninstall", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also ConfigMap kerf-schedulers that was changed by hand")
    options = parser.parse_args(arguments)

    async def body() -> int:
        config, _ = read_config("operator", Config)
        transport = await connect(
            config.kubeconfig, config.context, strict_x509=config.strict_x509, user_agent="kerf-operator"
        )
        log = structlog.get_logger().bind(service="operator")
        try:
            done = await Uninstall(transport, config, _say, log).run(everything=options.all)
        finally:
            await transport.close()
        return 0 if done else 1

    try:
        status = asyncio.run(body())
    except ConfigError as error:
        sys.stderr.write(f"kerf operator: {error}\n")
        status = 2
    except (StillRunning, TransportError, ValueError) as error:
        sys.stderr.write(f"kerf operator uninstall: {error}\n")
        status = 1
    sys.exit(status)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
