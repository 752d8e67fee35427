"""When an operator takes, renews or leaves the Lease."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import structlog

from services.operator.lease import Leader, Lease, LeaseSpec, Seen, decide
from shared.kube.transport import Response


def held_by(holder: str | None) -> Lease:
    return Lease(spec=LeaseSpec(holder_identity=holder, lease_duration_seconds=6))


@pytest.mark.parametrize(
    ("lease", "age_s", "wanted"),
    [
        (None, 0.0, "take"),
        (held_by(""), 0.0, "take"),
        (held_by(None), 0.0, "take"),
        (held_by("me"), 100.0, "renew"),
        (held_by("other"), 5.9, "wait"),
        (held_by("other"), 6.1, "take"),
    ],
)
def test_a_lease_is_taken_when_free_or_unchanged_for_its_duration(
    lease: Lease | None, age_s: float, wanted: str
) -> None:
    """By one's own clock since it was last seen to change, not by the time that the holder wrote."""
    assert decide(lease, "me", Seen("1", 50.0), 50.0 + age_s, 99.0) == wanted


class OneLease:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.version = 0

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Response:
        assert path.startswith("/apis/coordination.k8s.io/v1/namespaces/kerf-system/leases")
        if method == "GET":
            return Response(404, b"{}") if self.body is None else Response(200, msgspec.json.encode(self.body))
        self.version += 1
        self.body = msgspec.json.decode(body)
        assert self.body is not None
        self.body["metadata"]["resourceVersion"] = str(self.version)
        return Response(200, msgspec.json.encode(self.body))

    @property
    def holder(self) -> str:
        return "" if self.body is None else self.body["spec"].get("holderIdentity") or ""


async def test_a_lease_that_was_given_up_is_not_taken_again() -> None:
    """The process goes on for a while to end its other parts, and the other operator would wait for it."""
    api: Any = OneLease()
    leader = Leader(api, "kerf-system", "me", structlog.get_logger("test"), lease_s=0.03)
    running = asyncio.create_task(leader.run())
    await leader.changed.wait()
    assert api.holder == "me"
    await leader.release()
    await running
    assert (api.holder, leader.leading) == ("", False)
    await leader._step()  # one that was under way
    assert api.holder == ""
