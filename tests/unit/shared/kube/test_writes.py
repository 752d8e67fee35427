"""How answers are interpreted, and which keys are sent. The real server's answers: tests/contract/cluster_source."""

from __future__ import annotations

import json

import pytest

from shared.contracts.commands import Bind, DeletePod, Evict
from shared.kube.http1 import Http1Transport
from shared.kube.keys import valid_key
from shared.kube.outcomes import outcome_of
from shared.kube.resources import NODE, POD
from shared.kube.transport import Response
from shared.kube.writes import Writes
from tests.unit.shared.kube.test_http1 import Server, client, server

__all__ = ["client", "server"]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "done"),
        (201, "done"),
        (400, "refused"),
        (403, "refused"),
        (401, "throttled"),
        (404, "gone"),
        (409, "conflict"),
        (422, "refused"),
        (429, "throttled"),
        (500, "unknown"),
        (503, "unknown"),
        (504, "unknown"),
        (302, "unknown"),
    ],
)
def test_a_status_has_one_meaning(status: int, outcome: str) -> None:
    assert outcome_of(Response(status, b'{"kind":"Status","message":"because"}')).outcome == outcome


def test_the_servers_sentence_is_kept() -> None:
    assert outcome_of(Response(409, b'{"message":"because"}')).message == "because"
    assert outcome_of(Response(502, b"<html>bad gateway</html>")).message == "<html>bad gateway</html>"
    assert outcome_of(Response(500, b"{}")).message == "HTTP 500"


def test_an_eviction_under_several_budgets_is_refused_for_good() -> None:
    """The API server says so as a failure of its own, and to repeat it would keep its plan open for minutes."""
    said = b'{"message":"Internal error occurred: This pod has more than one PodDisruptionBudget, which the eviction"}'
    assert outcome_of(Response(500, said)).outcome == "refused"


def test_an_immutable_uid_error_means_that_the_pod_was_deleted() -> None:
    body = b'{"message":"m","details":{"causes":[{"field":"metadata.uid","message":"field is immutable"}]}}'
    assert outcome_of(Response(422, body)).outcome == "gone"


async def test_a_request_that_was_never_sent_may_be_repeated() -> None:
    """No server listens there: nothing can have happened."""
    result = await Writes(Http1Transport("127.0.0.1", 1), reporter="t").bindings.bind(
        Bind(uid="u", namespace="n", name="p", resource_version="1", node="x")
    )
    assert result.outcome == "throttled"
    assert "no connection" in result.message


@pytest.mark.parametrize("key", ["kerf.dev/grant", "a", "A_b.c-d", "x.y.z/" + "k" * 63])
def test_keys_that_kubernetes_takes(key: str) -> None:
    assert valid_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a b",
        "/a",
        "a/",
        "a/b/c",
        "-a",
        "a-",
        "A.b/c",
        "a..b/c",
        "ä",
        "x/" + "k" * 64,
        ".a/b",
        "a" * 400 + "/b",
        "a\n",
    ],
)
def test_keys_that_would_make_a_pod_unwritable(key: str) -> None:
    assert not valid_key(key)


def test_names_cannot_escape_their_segment_of_a_path() -> None:
    assert POD.path("a/../b", "n s", sub="binding") == "/api/v1/namespaces/n%20s/pods/a%2F..%2Fb/binding"
    assert NODE.path("..") == "/api/v1/nodes/%2E%2E"
    assert NODE.path("a?b#c\r\n") == "/api/v1/nodes/a%3Fb%23c%0D%0A"


async def test_an_eviction_and_a_deletion_name_the_pods_uid_and_affect_no_other_of_its_name(
    server: Server, client: Http1Transport
) -> None:
    """A StatefulSet's next pod has the same name, and must not be deleted in place of its predecessor."""
    writes = Writes(client, reporter="t")
    await writes.pods.evict(Evict(uid="u", namespace="n", name="p", reason="r"))
    await writes.pods.delete(DeletePod(uid="u", namespace="n", name="p", reason="r", resource_version="7"))
    eviction, deletion = (json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests)
    assert eviction["deleteOptions"]["preconditions"] == {"uid": "u"}
    assert deletion["preconditions"] == {"uid": "u", "resourceVersion": "7"}


def _conflict(message: str) -> bytes:
    body = json.dumps({"kind": "Status", "reason": "Conflict", "message": message}).encode()
    return b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    ("message", "resource_version", "outcome"),
    [
        ("Precondition failed: UID in precondition: u, UID in object meta: v", "", "gone"),
        ("the UID in the precondition (u) does not match the UID in record (v).", "", "gone"),
        ("the UID in the precondition (u) does not match the UID in record (v).", "7", "conflict"),
        ("the ResourceVersion in the precondition (7) does not match the ResourceVersion in record.", "", "conflict"),
        ("Operation cannot be fulfilled on pods: the object has been modified", "", "conflict"),
    ],
)
async def test_a_pod_whose_name_another_has_by_now_is_gone(
    server: Server, client: Http1Transport, message: str, resource_version: str, outcome: str
) -> None:
    """A StatefulSet gives its next pod the same name. The server sets a version itself for pods that do not run."""
    server.script = server.answer(_conflict(message))
    order = Evict(uid="u", namespace="n", name="p", reason="r", resource_version=resource_version)
    result = await Writes(client, reporter="t").pods.evict(order)
    assert (result.outcome, result.message) == (outcome, message)
