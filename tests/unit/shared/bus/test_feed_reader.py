"""Facts from a watcher of another version."""

from __future__ import annotations

import json

import pytest
import structlog

from shared.bus.feed_reader import FeedReader
from shared.contracts.base import ContractError, encode
from shared.contracts.facts import FeedBatch, SnapshotPage
from tests.support import build

LATER = {"fact": "put", "object": {"kind": "Dishwasher", "metadata": {"name": "d"}, "rack": [1, 2]}}
WRONG = {"fact": "put", "object": {"kind": "Node", "spec": 1}}
BATCH = FeedBatch(epoch="e", number=7, facts=(*build.put(build.node("a")), *build.gone(build.node("b"))))
PAGE = SnapshotPage(epoch="e", snapshot="s", number=7, page=1, pages=3, facts=BATCH.facts, log_sequence_seen=9)


def beside_a_later_kind(message: FeedBatch | SnapshotPage) -> bytes:
    body = json.loads(encode(message))
    first, second = body["facts"]
    return json.dumps(body | {"facts": [first, LATER, second]}).encode()


@pytest.mark.parametrize("message", [BATCH, PAGE])
def test_facts_of_known_kinds_are_read_as_ever(message: FeedBatch | SnapshotPage) -> None:
    reader = FeedReader()
    assert reader.read(encode(message), type(message)) == message
    assert not reader.unknown


@pytest.mark.parametrize("message", [BATCH, PAGE])
def test_those_of_a_later_versions_kinds_are_left_out_and_named(message: FeedBatch | SnapshotPage) -> None:
    """Else no placement of the version before could lead while watchers are upgraded."""
    reader = FeedReader()
    with structlog.testing.capture_logs() as logs:
        assert [reader.read(beside_a_later_kind(message), type(message)) for _ in range(2)] == [message] * 2
    assert [line["kind"] for line in logs] == ["Dishwasher"], "once"


def with_facts(*facts: object) -> bytes:
    return json.dumps({"epoch": "e", "number": 7, "facts": facts}).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b'{"epoch": "e", "number": "seven"}',
        beside_a_later_kind(BATCH).replace(b'"number": 7', b'"number": "seven"'),
        with_facts(WRONG),
        with_facts({"fact": "put", "object": {}}),
        with_facts(LATER, WRONG),
    ],
    ids=["no JSON", "a wrong field", "with a later kind too", "a wrong object", "no kind", "one and a later kind"],
)
def test_what_is_wrong_is_refused_whole(payload: bytes) -> None:
    with pytest.raises(ContractError, match="this is no FeedBatch"):
        FeedReader().read(payload, FeedBatch)
