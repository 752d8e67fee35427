"""Core publish, request, subscribe and public events on real NATS."""

from __future__ import annotations

import asyncio
import gc
import weakref

import msgspec
import pytest

from shared.bus.consumer import Delivered
from shared.bus.embedded import EmbeddedServer
from shared.bus.events import MAX_ATTEMPTS, _Pending
from shared.bus.jetstream import StreamCluster, StreamInfo, StreamState
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming, NoResponder, NoStream, Refused, Unknown
from shared.bus.watch import OLDER_MOST
from shared.contracts import subjects
from tests.support.waiting import eventually

EVENT = "kerf.v1.event.pod.bound.ns.team"


async def test_a_subscription_receives_requests_sent_right_after_it_returns(connect, bus: NatsBus) -> None:
    """subscribe returns only when the server knows it: nats-py's own flush would not prove that."""
    other = await connect()

    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, incoming.payload)

    for number in range(100):
        await bus.subscribe(f"kerf.test.s{number}", answer)
        assert await other.request(f"kerf.test.s{number}", b"%d" % number) == b"%d" % number


async def test_a_request_without_a_responder_fails_immediately(bus: NatsBus) -> None:
    with pytest.raises(NoResponder, match=r"no subscriber on kerf.test.void"):
        await bus.request("kerf.test.void", b"", timeout_s=30)


async def test_handlers_of_one_subscription_run_one_at_a_time_in_order(bus: NatsBus) -> None:
    running, overlaps, seen = 0, 0, []

    async def handler(incoming: Incoming) -> None:
        nonlocal running, overlaps
        overlaps += running
        running += 1
        await asyncio.sleep(0)
        running -= 1
        seen.append(int(incoming.payload))

    await bus.subscribe("kerf.test.order", handler)
    for number in range(200):
        await bus.publish("kerf.test.order", b"%d" % number)
    await eventually(lambda: len(seen) == 200)
    assert seen == list(range(200))
    assert overlaps == 0


async def test_concurrency_bounds_how_many_handlers_run_at_once(bus: NatsBus) -> None:
    running, most, release = 0, 0, asyncio.Event()

    async def handler(incoming: Incoming) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1

    await bus.subscribe("kerf.test.many", handler, concurrency=3)
    for _ in range(10):
        await bus.publish("kerf.test.many", b"")
    await eventually(lambda: running == 3)
    assert await bus.alive()
    release.set()
    await eventually(lambda: running == 0)
    assert most == 3


async def test_a_handler_that_raises_is_counted_and_the_subscription_lives_on(bus: NatsBus) -> None:
    seen: list[bytes] = []

    async def handler(incoming: Incoming) -> None:
        if incoming.payload == b"bad":
            raise ValueError("no good")
        seen.append(incoming.payload)

    await bus.subscribe("kerf.test.bad", handler)
    for payload in (b"bad", b"good"):
        await bus.publish("kerf.test.bad", payload)
    await eventually(lambda: seen == [b"good"])
    assert bus.stats.handler_failures == 1


async def test_a_queue_group_delivers_each_message_to_one_member(bus: NatsBus, connect) -> None:
    other = await connect()
    counts = [0, 0]

    def member(index: int):
        async def handler(incoming: Incoming) -> None:
            counts[index] += 1

        return handler

    await bus.subscribe("kerf.test.shared", member(0), queue="workers")
    await other.subscribe("kerf.test.shared", member(1), queue="workers")
    for _ in range(100):
        await bus.publish("kerf.test.shared", b"")
    await eventually(lambda: sum(counts) == 100)
    assert min(counts) > 0


async def test_stopping_a_subscription_handles_what_was_received_first(bus: NatsBus) -> None:
    seen: list[bytes] = []
    first, go = asyncio.Event(), asyncio.Event()

    async def handler(incoming: Incoming) -> None:
        first.set()
        await go.wait()
        seen.append(incoming.payload)

    subscription = await bus.subscribe("kerf.test.stop", handler)
    for number in range(5):
        await bus.publish("kerf.test.stop", b"%d" % number)
    await first.wait()
    stopping = asyncio.create_task(subscription.stop())
    go.set()
    await stopping
    assert seen == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(NoResponder):
        await bus.request("kerf.test.stop", b"")


async def test_subscriptions_and_reconnect_callbacks_resume_after_a_restart(
    server: EmbeddedServer, bus: NatsBus, connect
) -> None:
    called: list[bool] = []

    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, b"again")

    async def reconnected() -> None:
        called.append(bus.connected)

    async def broken() -> None:
        raise RuntimeError("this one fails")

    await bus.subscribe("kerf.test.again", answer)
    bus.on_reconnect(broken)
    bus.on_reconnect(reconnected)
    await server.restart()
    await eventually(lambda: called)
    assert called == [True]
    assert await (await connect()).request("kerf.test.again", b"") == b"again"


async def test_a_message_that_is_too_large_is_refused_with_a_reason(bus: NatsBus) -> None:
    with pytest.raises(BusError, match=r"cannot publish 2000000 bytes to kerf.test.big"):
        await bus.publish("kerf.test.big", b"x" * 2_000_000)


async def test_events_are_kept_once_however_often_they_are_sent(bus: NatsBus) -> None:
    """The event's id is its Nats-Msg-Id; the traceparent travels as a header."""
    for _ in range(3):
        bus.publish_event(EVENT, b"{}", "event-1", traceparent="00-1")
    bus.publish_event(EVENT, b"{}", "event-2")
    assert await bus._events.flushed(5)
    info = await bus.js.stream_info("KERF_EVENTS")
    assert info.state.messages == 2
    first = await bus.js.get_message("KERF_EVENTS", {"seq": 1})
    assert first is not None
    assert b"traceparent: 00-1" in first.hdrs
    assert bus.stats.events_acknowledged == 4


async def test_events_published_while_the_server_is_away_arrive_later(server: EmbeddedServer, bus: NatsBus) -> None:
    """Messages that were sent and not acknowledged are sent again under the same id."""
    await server.kill()
    await eventually(lambda: not bus.connected)
    for number in range(50):
        bus.publish_event(EVENT, b"{}", f"away-{number}")
    await server.start()
    assert await bus._events.flushed(20)
    assert (await bus.js.stream_info("KERF_EVENTS")).state.messages == 50
    assert bus.stats.events_lost == 0


async def test_events_that_no_stream_takes_are_counted_as_lost(connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.bus.events.RESEND_AFTER_S", 0.02)
    monkeypatch.setattr("shared.bus.events.RESEND_MOST_S", 0.05)
    bus = await connect()
    bus.publish_event(EVENT, b"{}", "1")
    await eventually(lambda: bus.stats.events_lost == 1)
    assert (await bus._events.flushed(1), bus.stats.events_published) == (True, MAX_ATTEMPTS)


def test_an_event_is_sent_again_ever_more_rarely_for_ten_minutes() -> None:
    """Its stream may be away for as long as its servers need for an election, or an operator for a disk."""
    event, waits = _Pending("s", b"", {}), []
    for _ in range(MAX_ATTEMPTS):
        event.sent(0.0)
        waits.append(event.due)
    assert waits[:6] == [3, 6, 12, 24, 30, 30]
    assert 600 < sum(waits) < 660


async def test_too_many_unacknowledged_events_are_shed_and_counted(
    server: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process does not grow without end while the server hangs."""
    monkeypatch.setattr("shared.bus.events.MAX_OUTSTANDING", 10)
    server.freeze()
    for number in range(25):
        bus.publish_event(EVENT, b"{}", f"n{number}")
    assert bus.stats.events_lost == 15
    server.thaw()
    assert await bus._events.flushed(10)


async def test_what_was_published_before_drain_arrives(bus: NatsBus, connect) -> None:
    other, seen = await connect(), []

    async def handler(incoming: Incoming) -> None:
        seen.append(incoming.payload)

    await other.subscribe("kerf.test.last", handler)
    for _ in range(100):
        await bus.publish("kerf.test.last", b"x")
    bus.publish_event(EVENT, b"{}", "last")
    await bus.drain()
    await eventually(lambda: len(seen) == 100)
    assert (await other.js.stream_info("KERF_EVENTS")).state.messages == 1


async def test_kv_swap_is_compare_and_swap(bus: NatsBus) -> None:
    kv = bus.kv(subjects.KV_NODES)
    assert (await kv.get("a")).revision == 0
    first = await kv.swap("a", b"1", 0)
    second = await kv.swap("a", b"2", first)

    with pytest.raises(Refused):
        await kv.swap("a", b"3", first)
    assert (await kv.get("a")).value == b"2"
    await kv.delete("a")
    gone = await kv.get("a")
    assert gone.value is None
    assert gone.revision > second
    assert await kv.swap("a", b"4", gone.revision) > gone.revision


async def test_a_watch_on_one_key_reports_no_other(bus: NatsBus) -> None:
    kv, heard = bus.kv(subjects.KV_NODES), []

    async def handler(entry) -> None:
        heard.append((entry.key, entry.value))

    await kv.watch(handler, key="mine")
    await kv.put("other", b"1")
    await kv.put("mine", b"2")
    await eventually(lambda: heard, what="the put; a bucket keeps one value a key, so the delete may overtake it")
    await kv.delete("mine")
    await eventually(lambda: len(heard) == 2)
    assert heard == [("mine", b"2"), ("mine", None)]


async def test_a_watch_tells_no_older_value_than_it_has_told(bus: NatsBus) -> None:
    """A consumer may be on a replica that is only catching up."""
    kv, heard = bus.kv(subjects.KV_NODES), []

    async def handler(entry) -> None:
        heard.append(entry.value)

    watch = await kv.watch(handler)
    revision = await kv.put("n", b"new")
    await eventually(lambda: heard == [b"new"])
    now = watch._seen["$KV.kerf_nodes.n"][1]
    older = Delivered(
        subject="$KV.kerf_nodes.n", data=b"old", headers={}, sequence=revision - 1, time_ns=now - 1, pending=0
    )
    await watch._tell(older)
    assert heard == [b"new"]
    await watch._tell(msgspec.structs.replace(older, data=b"made anew", time_ns=now + 1))
    assert heard == [b"new", b"made anew"]


@pytest.mark.parametrize(("more", "listings"), [(3, 2), (0, 2), (0, 99)])
async def test_a_listing_of_a_replica_that_lags_is_not_believed(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch, more: int, listings: int
) -> None:
    """Keys that it lacks would be told as deleted. A leader whose newest message was taken out is believed in the
    end."""
    monkeypatch.setattr("shared.bus.watch.RETRY_S", 0.01)
    kv, heard = bus.kv(subjects.KV_NODES), []
    last = [await kv.put(name, name.encode()) for name in "ab"][-1]
    real, asked = bus.js.stream_info, []

    async def stream_info(stream: str) -> StreamInfo:
        asked.append(stream)
        if len(asked) > listings:
            return await real(stream)
        return StreamInfo(config={}, state=StreamState(messages=2 + more, last_seq=last + 9))

    async def handler(entry) -> None:
        heard.append((entry.key, entry.value))

    monkeypatch.setattr(bus.js, "stream_info", stream_info)
    watch = await kv.watch(handler)
    assert heard == [("a", b"a"), ("b", b"b")]
    assert len(asked) == min(listings, OLDER_MOST) + 1
    await watch.stop()


async def test_a_streams_state_is_that_of_its_leader(bus: NatsBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has just begun with an empty store answers too, and knows no leader."""
    monkeypatch.setattr("shared.bus.jetstream.ASK_AGAIN_S", 0.01)
    stale = StreamInfo(config={}, cluster=StreamCluster(), state=StreamState(last_seq=0))
    right = StreamInfo(config={}, cluster=StreamCluster(leader="n1"), state=StreamState(last_seq=7))
    answers = [stale, stale, right]

    async def call(*_: object, **__: object) -> StreamInfo:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(bus.js, "call", call)
    assert (await bus.js.stream_info("KERF_LOG")).state.last_seq == 7
    answers[:] = [stale]
    with pytest.raises(Unknown, match="knows no leader"):
        await bus.js.stream_info("KERF_LOG")


async def test_a_watch_on_a_missing_bucket_is_refused(connect) -> None:

    async def handler(entry) -> None:
        raise AssertionError(entry)

    with pytest.raises(NoStream):
        await (await connect()).kv("none").watch(handler)


async def test_no_server_is_an_error_that_names_the_address_and_hides_the_password() -> None:
    with pytest.raises(
        BusError, match=r"cannot connect to NATS at nats://user:\*\*\*@127.0.0.1:1: no server answered"
    ) as failed:
        await NatsBus.connect("nats://user:secret@127.0.0.1:1", timeout_s=0.3)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("kind", ["watch", "events"])
async def test_what_is_stopped_holds_nothing_of_its_owner(bus: NatsBus, kind: str) -> None:
    """A session that has ended is told nothing more, and has a whole book in memory."""

    class Owner:
        async def told(self, _: object) -> None:
            pass

    owner = Owner()
    kept = weakref.ref(owner)
    watch = await (bus.kv(subjects.KV_NODES).watch(owner.told) if kind == "watch" else bus.follow_events(owner.told))
    del owner
    await watch.stop()
    del watch
    gc.collect()
    assert kept() is None
