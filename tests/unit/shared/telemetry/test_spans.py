"""Traces: one per pod, found by its UID, sampled by it, and cheap if they are not sampled."""

from __future__ import annotations

import contextlib
import http.server
import threading
import uuid

import pytest

from shared.telemetry import Telemetry, format_traceparent, parse_traceparent, root_traceparent, trace_id_for
from shared.telemetry.spans import messaging
from shared.telemetry.trace_ids import root_span_id_for

UIDS = [str(uuid.UUID(int=0x1234_0000_0000_4000_8000_0000_0000_0000 + number * 7919)) for number in range(4000)]


def test_the_trace_id_is_blake2b_of_the_uid() -> None:
    """Fixed for ever: other programs find a pod's trace with the same formula."""
    assert f"{trace_id_for('0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0001'):032x}" == "e287a75c803a035191590451586be93d"
    assert len({trace_id_for(uid) for uid in UIDS}) == len(UIDS)


@pytest.mark.parametrize("ratio", [0.05, 0.4])
def test_the_ratio_holds_over_uuids_with_fixed_bits(ratio: float) -> None:
    """Raw UUIDs as trace ids were sampled at 0 % for a ratio of 0.4: their fixed bits lie in the sampled half."""
    telemetry = Telemetry("test", ratio=ratio, otlp_endpoint="")
    share = sum(telemetry.sampled(uid) for uid in UIDS) / len(UIDS)
    assert share == pytest.approx(ratio, abs=0.03)


def test_all_services_sample_the_same_pods() -> None:
    one, other = Telemetry("placement", ratio=0.3, otlp_endpoint=""), Telemetry("watcher", ratio=0.3, otlp_endpoint="")
    assert [one.sampled(uid) for uid in UIDS] == [other.sampled(uid) for uid in UIDS]


def test_an_unsampled_pod_makes_no_span_and_never_calls_the_sdk() -> None:
    telemetry = Telemetry("test", ratio=0.0, otlp_endpoint="")
    assert telemetry.pod_span("uid", "decide", attributes={"a": 1}) == ""
    assert telemetry._recorder is None
    assert telemetry.take() == ()


def test_force_records_whatever_the_ratio() -> None:
    """Rejected, slow and preempted pods are always traced."""
    telemetry = Telemetry("test", ratio=0.0, otlp_endpoint="")
    assert telemetry.pod_span("uid", "rejected", force=True)
    assert [span.name for span in telemetry.take()] == ["rejected"]


def test_spans_of_several_services_are_linked_by_the_uid_alone() -> None:
    """The root's id is derived from the UID, so a child may be created by another process, and before the root."""
    watcher, placement = (
        Telemetry("watcher", ratio=1.0, otlp_endpoint=""),
        Telemetry("placement", ratio=1.0, otlp_endpoint=""),
    )
    child = placement.pod_span(
        "uid-1", "decide", start_ns=200, end_ns=300, attributes={"kerf.nodes": 7}, events=("filtered",)
    )
    placement.pod_span("uid-1", "score", start_ns=210, end_ns=220, parent=child)
    root = watcher.pod_span("uid-1", "admission", start_ns=100, end_ns=150, root=True)
    assert root == root_traceparent("uid-1")
    decide, score = placement.take()
    (admission,) = watcher.take()
    assert {decide.trace_id, score.trace_id, admission.trace_id} == {f"{trace_id_for('uid-1'):032x}"}
    assert admission.parent_id == ""
    assert decide.parent_id == admission.span_id == f"{root_span_id_for('uid-1'):016x}"
    assert score.parent_id == decide.span_id == f"{parse_traceparent(child).span_id:016x}"
    assert (decide.start_ns, decide.end_ns, decide.attributes, decide.events) == (
        200,
        300,
        {"kerf.nodes": 7},
        ("filtered",),
    )
    assert (decide.service, admission.service) == ("placement", "watcher")


def test_links_and_parents_that_are_no_traceparents_are_left_out() -> None:
    """They may come from annotations that users write; an invalid one must not stop a pod."""
    telemetry = Telemetry("test", ratio=1.0, otlp_endpoint="")
    good = root_traceparent("other")
    telemetry.pod_span("uid", "gang", parent="nonsense", links=("bad", good), error="no room")
    (span,) = telemetry.take()
    assert span.links == (good,)
    assert span.parent_id == f"{root_span_id_for('uid'):016x}"
    assert span.error == "no room"


def test_a_parent_of_another_trace_is_not_taken() -> None:
    telemetry = Telemetry("test", ratio=1.0, otlp_endpoint="")
    telemetry.pod_span("uid", "x", parent=root_traceparent("someone-else"))
    assert telemetry.take()[0].parent_id == f"{root_span_id_for('uid'):016x}"


def test_a_timed_block_records_the_exception_and_reraises_it() -> None:
    telemetry = Telemetry("test", ratio=1.0, otlp_endpoint="")
    telemetry.now_ns = iter([10, 20]).__next__
    with contextlib.suppress(KeyError), telemetry.span("work", attributes={"a": 1}) as span:
        span.set("b", 2)
        span.event("half way")
        raise KeyError("lost")
    (recorded,) = telemetry.take()
    assert (recorded.start_ns, recorded.end_ns, recorded.attributes, recorded.events) == (
        10,
        20,
        {"a": 1, "b": 2},
        ("half way",),
    )
    assert recorded.error == "KeyError('lost')"
    assert parse_traceparent(span.traceparent).trace_id == int(recorded.trace_id, 16)


def test_a_timed_block_follows_its_parents_sampling() -> None:
    telemetry = Telemetry("test", ratio=1.0, otlp_endpoint="")
    with telemetry.span("quiet", parent=format_traceparent(5, 6, sampled=False)) as span:
        pass
    assert telemetry.take() == ()
    assert parse_traceparent(span.traceparent).trace_id == 5


def test_spans_that_are_not_collected_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.telemetry.recorder.MAX_WAITING", 3)
    telemetry = Telemetry("test", ratio=1.0, otlp_endpoint="")
    for number in range(5):
        telemetry.pod_span("uid", f"s{number}")
    assert telemetry.dropped == 2
    assert [span.name for span in telemetry.take()] == ["s2", "s3", "s4"]


def test_spans_go_to_otlp_over_http() -> None:
    """The real exporter against a real HTTP server: protobuf arrives at /v1/traces."""
    came: list[tuple[str, str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        telemetry = Telemetry("test", ratio=1.0, otlp_endpoint=f"http://127.0.0.1:{collector.server_port}")
        telemetry.pod_span("uid", "a-span-for-the-collector")
        telemetry.shutdown()
        collector.shutdown()
        thread.join()
    assert [(path, kind) for path, kind, _ in came] == [("/v1/traces", "application/x-protobuf")]
    assert b"a-span-for-the-collector" in came[0][2]
    assert b"kerf-test" in came[0][2]


def test_messaging_spans_follow_the_semantic_conventions() -> None:
    assert messaging("publish", "kerf.v1.cmd.bind") == (
        "publish kerf.v1.cmd.bind",
        "producer",
        {
            "messaging.system": "nats",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.template": "kerf.v1.cmd.bind",
        },
    )
    assert messaging("process", "kerf.v1.feed.{epoch}")[1] == "consumer"


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="within 0 and 1"):
        Telemetry("test", ratio=ratio, otlp_endpoint="")


def test_a_traceparent_comes_back_as_it_was_written() -> None:
    for sampled in (True, False):
        assert parse_traceparent(format_traceparent(1, 2, sampled=sampled)) == (1, 2, sampled)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not of the form"),
        ("00-xyz", "not of the form"),
        ("00-" + "A" * 32 + "-" + "1" * 16 + "-01", "in lower case"),
        ("00-" + "0" * 32 + "-" + "1" * 16 + "-01", "zeros only"),
        ("00-" + "1" * 32 + "-" + "0" * 16 + "-01", "zeros only"),
        ("ff-" + "1" * 32 + "-" + "1" * 16 + "-01", "version ff"),
        ("00-" + "1" * 32 + "-" + "1" * 16 + "-01-more", "version 00"),
        ("01-" + "1" * 32 + "-" + "1" * 16 + "-01more", "version 01"),
    ],
)
def test_a_bad_traceparent_is_refused_with_the_reason(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_traceparent(text)


def test_a_later_version_of_traceparent_is_read_by_its_first_fields() -> None:
    assert parse_traceparent("01-" + "1" * 32 + "-" + "2" * 16 + "-01-more").sampled
