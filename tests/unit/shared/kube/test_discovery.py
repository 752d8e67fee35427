"""Which version a server has. The same with a real API server: tests/cluster/test_gangs.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from shared.kube.discovery import DiscoveryError, served
from shared.kube.resources import GANG_SOURCES
from shared.kube.transport import Response

PODGROUPS = next(r for r in GANG_SOURCES if (r.group, r.plural) == ("scheduling.k8s.io", "podgroups"))


class Server:
    """Answers these paths with these documents, and all others with 404."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> Response:
        assert (method, body) == ("GET", b"")
        found = self._documents.get(path)
        if isinstance(found, int):
            return Response(found, b"no")
        if isinstance(found, bytes):
            return Response(200, found)
        return Response(404, b"{}") if found is None else Response(200, json.dumps(found).encode())

    def stream(
        self, path: str, *, read_timeout_s: float
    ) -> AbstractAsyncContextManager[tuple[Response, AsyncIterator[bytes]]]:
        raise AssertionError("discovery streams nothing")

    async def close(self) -> None: ...


def group(*versions: str, preferred: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"versions": [{"version": version} for version in versions]}
    return found | ({"preferredVersion": {"version": preferred}} if preferred else {})


def names(*plurals: str) -> dict[str, Any]:
    return {"resources": [{"name": plural} for plural in plurals]}


async def version(documents: Mapping[str, Any]) -> str | None:
    found = await served(Server(documents), PODGROUPS)
    return None if found is None else found.prefix


API = "/apis/scheduling.k8s.io"


async def test_the_preferred_version_that_has_the_kind_is_taken() -> None:
    documents = {
        API: group("v1", "v1beta1", "v1alpha3", preferred="v1"),
        f"{API}/v1": names("priorityclasses"),
        f"{API}/v1beta1": names("podgroups", "podgroups/status", "workloads"),
        f"{API}/v1alpha3": names("podgroups", "compositepodgroups"),
    }
    assert await version(documents) == "apis/scheduling.k8s.io/v1beta1"
    assert await version(documents | {f"{API}/v1": names("podgroups")}) == "apis/scheduling.k8s.io/v1"
    assert await version(documents | {API: group("v1beta1", "v1alpha3", preferred="v1alpha3")}) == (
        "apis/scheduling.k8s.io/v1alpha3"
    )


async def test_a_server_without_the_group_or_the_kind_has_none() -> None:
    assert await version({}) is None
    assert await version({API: group("v1"), f"{API}/v1": names("priorityclasses")}) is None


async def test_a_version_that_is_listed_and_not_there_says_nothing() -> None:
    """Of two API servers behind one address one may have listed it and the other not have it: all objects of the kind
    would be told as gone."""
    with pytest.raises(DiscoveryError, match="lists v2, and the server does not have it"):
        await version({API: group("v1", "v2"), f"{API}/v1": names("priorityclasses")})


@pytest.mark.parametrize(("answer", "says"), [
    (503, "HTTP 503"),
    (b"<html>", "no discovery document"),
    ({"kind": "Status"}, "lists no versions"),
    ({"versions": 3}, "lists no versions"),
])  # fmt: skip
async def test_an_answer_that_says_nothing_is_an_error_and_not_an_absence(answer: Any, says: str) -> None:
    with pytest.raises(DiscoveryError, match=says):
        await version({API: answer})
