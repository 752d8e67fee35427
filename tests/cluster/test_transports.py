"""Both transports keep the same port, against a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from shared.kube import resources
from shared.kube.access import load_access
from shared.kube.aiohttp_transport import AiohttpTransport
from shared.kube.client import transport_for
from shared.kube.transport import MERGE_PATCH, Transport, TransportError
from tests.support.wire import Wire
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.fixture(params=[("http1", 64), ("aiohttp", 64)], ids=["http1", "aiohttp"])
async def transport(
    request: pytest.FixtureRequest, wire: Wire, control_plane: ControlPlane
) -> AsyncIterator[Transport]:
    access = msgspec.structs.replace(
        await load_access(str(control_plane.kubeconfig())), server=f"https://127.0.0.1:{wire.port}"
    )
    name, most = request.param
    make = AiohttpTransport if name == "aiohttp" else transport_for
    made: Transport = make(access, max_connections=most)
    yield made
    await made.close()


@pytest.fixture
async def wire(control_plane: ControlPlane) -> AsyncIterator[Wire]:
    async with Wire(control_plane.port) as made:
        yield made


async def test_requests_carry_bodies_both_ways(transport: Transport, namespace: str) -> None:
    made = await transport.request("POST", resources.POD.collection(namespace), json.dumps(POD).encode())
    assert made.status == 201
    patched = await transport.request(
        "PATCH", resources.POD.path("p", namespace), b'{"metadata":{"labels":{"a":"b"}}}', content_type=MERGE_PATCH
    )
    assert json.loads(patched.body)["metadata"]["labels"] == {"a": "b"}
    assert (await transport.request("GET", resources.POD.path("nobody", namespace))).status == 404
    assert (
        await transport.request("DELETE", resources.POD.path("p", namespace), b'{"gracePeriodSeconds":0}')
    ).status == 200


async def test_a_long_answer_comes_whole(transport: Transport, namespace: str) -> None:
    """Hundreds of kilobytes, in chunks."""
    for number in range(3):
        body = {"metadata": {"name": f"long-{number}", "annotations": {"x": "y" * 200_000}}, "spec": POD["spec"]}
        assert (
            await transport.request("POST", resources.POD.collection(namespace), json.dumps(body).encode())
        ).status == 201
    listed = await transport.request("GET", resources.POD.collection(namespace))
    assert len(listed.body) > 600_000
    assert len(json.loads(listed.body)["items"]) == 3


async def test_a_watch_streams(transport: Transport, namespace: str) -> None:
    path = f"{resources.POD.collection(namespace)}?watch=1&timeoutSeconds=30"
    async with transport.stream(path, read_timeout_s=10) as (response, chunks):
        assert response.status == 200
        await transport.request("POST", resources.POD.collection(namespace), json.dumps(POD).encode())
        seen = b""
        async for chunk in chunks:
            seen += chunk
            if seen.endswith(b"\n"):
                break
        assert json.loads(seen)["type"] == "ADDED"


async def test_a_refused_watch_has_its_reason(transport: Transport) -> None:
    async with transport.stream("/apis/apps/v1/lamps?watch=1", read_timeout_s=10) as (response, _):
        assert response.status == 404
        assert b"could not find" in response.body or b"not found" in response.body


@pytest.mark.parametrize("transport", [("http1", 1), ("aiohttp", 1)], indirect=True, ids=["http1", "aiohttp"])
async def test_watches_take_no_connection_from_the_writes(transport: Transport, namespace: str) -> None:
    """A watcher has more kinds to watch than it has connections to spare."""
    path = f"{resources.POD.collection(namespace)}?watch=1&timeoutSeconds=30"
    async with (
        asyncio.timeout(10),
        transport.stream(path, read_timeout_s=10) as (first, _),
        transport.stream(path, read_timeout_s=10) as (second, _),
    ):
        assert (first.status, second.status) == (200, 200)
        assert (await transport.request("GET", "/version", timeout_s=5)).status == 200


async def test_a_cut_watch_is_an_error(transport: Transport, namespace: str, wire: Wire) -> None:
    path = f"{resources.POD.collection(namespace)}?watch=1&timeoutSeconds=30"
    async with transport.stream(path, read_timeout_s=10) as (_, chunks):
        wire.cut()
        with pytest.raises(TransportError):
            await anext(chunks)


async def test_silence_is_unknown(transport: Transport, namespace: str, wire: Wire) -> None:
    await transport.request("GET", "/version")
    wire.freeze()
    with pytest.raises(TransportError) as failure:
        await transport.request("POST", resources.POD.collection(namespace), json.dumps(POD).encode(), timeout_s=0.2)
    assert failure.value.sent
