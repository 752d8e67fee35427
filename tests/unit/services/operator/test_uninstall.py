"""How an uninstallation ends that cannot take the operator's Lease, and what is said of pods that outlive Kerf."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import structlog

from services.operator.config import Config
from services.operator.objects import Pod, PodSpec, PodStatus
from services.operator.uninstall import StillRunning, Uninstall, left_pods
from shared.kube.transport import Response, TransportError
from shared.model.grant import ContainerGrant, Grant, encode_grant
from shared.model.kube_object import Meta
from shared.model.suspension import SuspendAction, Suspension, encode_suspension


class Leases:
    """An API server with nothing but the path of the operator's Lease."""

    def __init__(self, holder: str, *, renewed: bool, refusal: Response | None) -> None:
        """`renewed`: whether the Lease is another one each time; `refusal`: the answer to writes."""
        self.holder, self.renewed, self.refusal = holder, renewed, refusal
        self.version = 1

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Response:
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/kerf-system/leases")
        if method != "GET":
            return self.refusal or Response(409, b"{}")
        if not self.holder:
            return Response(404, b"{}")
        self.version += self.renewed
        lease = {
            "metadata": {"name": "kerf-operator", "resourceVersion": str(self.version)},
            "spec": {"holderIdentity": self.holder, "leaseDurationSeconds": 0},
        }
        return Response(200, msgspec.json.encode(lease))


def status(code: int, message: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}
    return Response(code, msgspec.json.encode(body))


async def ends_with(api: Any) -> BaseException:
    said: list[str] = []
    uninstall = Uninstall(api, Config(lease_s=0.03), said.append, structlog.get_logger("test"), wait_s=0.1)
    with pytest.raises((StillRunning, TransportError)) as ended:
        await uninstall.run()
    assert said == []
    return ended.value


async def test_a_lease_that_is_renewed_is_held_by_a_running_operator() -> None:
    error = await ends_with(Leases("kerf-operator-a", renewed=True, refusal=None))
    assert isinstance(error, StillRunning)
    assert "is held by a running operator" in str(error)


NO_NAMESPACE = 'namespaces "kerf-system" not found'
FORBIDDEN = 'leases.coordination.k8s.io "kerf-operator" is forbidden: User "x" cannot update resource "leases"'


@pytest.mark.parametrize(
    ("holder", "code", "message"), [("", 404, NO_NAMESPACE), ("", 403, FORBIDDEN), ("kerf-operator-a", 403, FORBIDDEN)]
)
async def test_a_lease_that_the_api_server_does_not_give_is_told_in_its_words(
    holder: str, code: int, message: str
) -> None:
    """Without the namespace no operator runs, and what to do is another thing."""
    error = await ends_with(Leases(holder, renewed=False, refusal=status(code, message)))
    assert not isinstance(error, StillRunning)
    assert f"Lease kerf-operator in namespace kerf-system cannot be taken: HTTP {code}: {message}" in str(error)


def placed(name: str, *, claim: str = "", suspended: SuspendAction | None = None, phase: str = "Running") -> Pod:
    part = ContainerGrant(strategy="advisory", gpus=(), claim=claim)
    notes = {"kerf.dev/grant": encode_grant(Grant(grant_id=name, term=1, containers={"c": part}))}
    if suspended:
        notes["kerf.dev/suspended"] = encode_suspension(Suspension(action=suspended, plan_id="p"))
    return Pod(
        metadata=Meta(namespace="team", name=name, annotations=notes),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(phase=phase),
    )


def test_pods_that_cannot_go_on_or_end_without_kerf_are_named() -> None:
    pods = [
        placed("plain"),
        placed("claims", claim="uid"),
        placed("claims-too", claim="uid", phase="Pending"),
        placed("claimed", claim="uid", phase="Succeeded"),
        placed("paused", suspended="pause"),
        placed("away", suspended="checkpoint"),
        Pod(metadata=Meta(namespace="team", name="other"), spec=PodSpec(node_name="n1")),
    ]
    running, claims, away = left_pods(pods)
    assert running.startswith("left: 4 running pods keep the GPUs")
    assert claims.endswith("remove it when they are gone: team/claims, team/claims-too")
    assert away.endswith("delete them, or install Kerf again: team/away")
    assert len(left_pods([placed("plain")])) == 1
    assert left_pods([]) == []
