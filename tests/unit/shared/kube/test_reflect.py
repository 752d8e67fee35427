"""Lists and watch events, turned into facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.contracts.facts import Fact, Gone
from shared.kube.decoder import Decoder, Lines, Undecodable, WatchError
from shared.kube.reflect import INITIAL_END, Reflection
from shared.kube.resources import DEVICE_CLAIM, POD
from shared.model.kube_object import Meta
from shared.model.objects import Pod


def pod(name: str, version: int, *, uid: str = "") -> Pod:
    return Pod(metadata=Meta(name=name, namespace="ns", uid=uid or f"uid-{name}", resource_version=str(version)))


def line(event: str, /, **document: Any) -> bytes:
    return json.dumps({"type": event, "object": document}).encode()


def reported(facts: list[Fact]) -> list[tuple[str, str, bool]]:
    """What happened to which version, and whether an end is certain."""
    return [
        (
            "gone" if isinstance(f, Gone) else "put",
            f"{f.object.metadata.name}@{f.object.metadata.resource_version}",
            not isinstance(f, Gone) or f.certain,
        )
        for f in facts
    ]


@pytest.fixture
def listed() -> Reflection:
    """Two pods by list, as of version 10."""
    reflection = Reflection()
    reflection.begin_list()
    reflection.listed([pod("a", 5), pod("b", 7)])
    reflection.end_list("10")
    return reflection


def test_a_list_is_reported_and_the_watch_continues_from_it(listed: Reflection) -> None:
    assert (listed.resource_version, len(listed), listed.listing) == ("10", 2, False)


def test_events_move_the_version_from_which_a_watch_continues(listed: Reflection) -> None:
    assert reported(listed.event("MODIFIED", pod("a", 11))) == [("put", "a@11", True)]
    assert listed.resource_version == "11"


def test_a_version_comes_once(listed: Reflection) -> None:
    assert listed.event("ADDED", pod("a", 5)) == []
    assert reported(listed.event("MODIFIED", pod("a", 12))) == [("put", "a@12", True)]
    assert listed.event("MODIFIED", pod("a", 11)) == [], "an older one says nothing"


def test_a_deletion_is_certain_and_reported_with_the_last_state(listed: Reflection) -> None:
    assert reported(listed.event("DELETED", pod("a", 12))) == [("gone", "a@12", True)]
    assert listed.event("DELETED", pod("a", 12)) == []


def test_a_new_list_reports_missing_objects_as_not_certainly_deleted(listed: Reflection) -> None:
    listed.expired()
    assert listed.resource_version == ""
    listed.begin_list()
    assert reported(listed.listed([pod("b", 9), pod("c", 20)])) == [("put", "b@9", True), ("put", "c@20", True)]
    assert reported(listed.end_list("30")) == [("gone", "a@5", False)]


def test_a_new_list_without_changes_reports_nothing(listed: Reflection) -> None:
    listed.begin_list()
    assert listed.listed([pod("a", 5), pod("b", 7)]) == []
    assert listed.end_list("30") == []


def test_a_name_with_a_new_bearer_ends_the_old_one_first(listed: Reflection) -> None:
    listed.begin_list()
    assert reported(listed.listed([pod("a", 20, uid="second")])) == [("gone", "a@5", False), ("put", "a@20", True)]
    assert reported(listed.end_list("30")) == [("gone", "b@7", False)]


def test_a_watch_list_ends_with_its_bookmark() -> None:
    reflection, decoder = Reflection(), Decoder(POD)
    reflection.begin_list()
    added = line("ADDED", kind="Pod", metadata={"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "5"})
    assert reported(reflection.event(*decoder.event(added))) == [("put", "a@5", True)]
    # As the server writes it: a pod with containers: null.
    progress = line(
        "BOOKMARK",
        kind="Pod",
        metadata={"resourceVersion": "8", "creationTimestamp": None},
        spec={"containers": None},
        status={},
    )
    assert reflection.event(*decoder.event(progress)) == []
    assert reflection.listing, "a bookmark of progress does not end the list"
    end = line(
        "BOOKMARK",
        kind="Pod",
        metadata={"resourceVersion": "9", "annotations": {INITIAL_END: "true"}},
        spec={"containers": None},
    )
    assert reflection.event(*decoder.event(end)) == []
    assert (reflection.listing, reflection.resource_version) == (False, "9")


def test_amounts_of_a_pods_status_are_kept_only_while_it_is_resized() -> None:
    """Kubernetes repeats for each container what its spec has: it is not needed twice, for 100,000 pods."""
    decoder = Decoder(POD)

    def held(cpu: str) -> tuple[object, ...]:
        has = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
        spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
        seen = {"kind": "Pod", "metadata": {"name": "a"}, "spec": spec, "status": {"containerStatuses": [has]}}
        (kept,) = decoder.page(json.dumps({"items": [seen]}).encode()).objects
        assert decoder.event(line("MODIFIED", **seen))[1] == kept
        assert isinstance(kept, Pod)
        return kept.status.container_statuses

    assert held("1") == ()
    assert len(held("2")) == 1


def test_an_aborted_list_reports_no_deletion(listed: Reflection) -> None:
    listed.begin_list()
    listed.listed([pod("b", 9)])
    listed.abandon_list()
    assert (len(listed), listed.resource_version) == (2, "")


def test_initial_events_do_not_move_the_version() -> None:
    """They come in any order, and a watch from the highest of them would miss what the others had not reported."""
    reflection = Reflection()
    reflection.begin_list()
    reflection.event("ADDED", pod("a", 500))
    reflection.abandon_list()
    assert reflection.resource_version == ""


def test_an_error_of_the_server_has_its_code() -> None:
    with pytest.raises(WatchError, match="too old") as error:
        Decoder(POD).event(line("ERROR", kind="Status", code=410, message="too old resource version"))
    assert error.value.code == 410


def test_an_object_that_cannot_be_read_is_named() -> None:
    broken = line("ADDED", kind="Pod", metadata={"name": "a", "namespace": "ns", "labels": 7})
    with pytest.raises(Undecodable, match=r"Pod ns/a: .*labels"):
        Decoder(POD).event(broken)
    with pytest.raises(Undecodable, match="cannot be read"):
        Decoder(POD).event(b"<html>")
    for cannot_be_read in (b"[" * 100_000, b'"\xff"'):
        with pytest.raises(Undecodable):
            Decoder(POD).event(b'{"type":"ADDED","object":{"metadata":{"labels":{"a":%b}}}}' % cannot_be_read)


def test_null_is_what_is_not_there() -> None:
    """As the API server stores the requests of a claim without any."""
    claim = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "3"}, "spec": {"devices": {"requests": None}}}
    _, seen = Decoder(DEVICE_CLAIM).event(line("ADDED", kind="ResourceClaim", **claim))
    assert seen.spec.devices.requests == ()
    page = Decoder(DEVICE_CLAIM).page(json.dumps({"metadata": {}, "items": [claim]}).encode())
    assert (page.objects, page.unreadable) == ((seen,), ())


def test_a_page_reads_items_without_kind_and_names_broken_ones() -> None:
    items = [
        {"metadata": {"name": "a", "uid": "u", "resourceVersion": "3"}},
        {"metadata": {"name": "b", "namespace": "ns"}, "spec": 7},
    ]
    page = Decoder(POD).page(
        json.dumps({"metadata": {"resourceVersion": "9", "continue": "tok"}, "items": items}).encode()
    )
    assert ([o.metadata.name for o in page.objects], page.resource_version, page.more) == (["a"], "9", "tok")
    assert len(page.unreadable) == 1
    assert page.unreadable[0].startswith("Pod ns/b: ")


def test_lines_are_complete_however_the_bytes_are_split() -> None:
    for step in range(1, 12):
        lines, data, got = Lines(), b'{"a":1}\n{"b":2}\n\n{"c":3}\n{"d"', []
        for start in range(0, len(data), step):
            got += lines.feed(data[start : start + step])
        assert got == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
