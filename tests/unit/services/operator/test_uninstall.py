"""How an uninstallation ends that cannot take the operator's Lease."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import structlog

from services.operator.config import Config
from services.operator.uninstall import StillRunning, Uninstall
from shared.kube.transport import Response, TransportError


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
