"""The known faults of nats-py 2.16, each with the proof that the bus does not have it.

Numbers are those of docs/decisions/0030-nats-py-faults.md; fault 14 is of TLS, in test_nats_bus_tls.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

import pytest
import uvloop
from nats.aio.client import Srv
from nats.errors import Error

from shared.bus import connection as connection_module
from shared.bus import consumer as consumer_module
from shared.bus.client import RECONNECT_WAIT_S, REFUSED_WAIT_S
from shared.bus.embedded import EmbeddedServer, User
from shared.bus.jetstream import StreamInfo
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming, KvEntry, NoResponder, NoStream, NotConnected, Refused, Unknown
from shared.bus.provision import provision
from shared.contracts import subjects
from tests.support.waiting import eventually
from tests.support.wire import Wire


class Recorder:
    """A KV handler that records the values that it gets."""

    def __init__(self) -> None:
        self.entries: list[KvEntry] = []
        self.state: dict[str, bytes] = {}

    async def __call__(self, entry: KvEntry) -> None:
        self.entries.append(entry)
        if entry.value is None:
            self.state.pop(entry.key, None)
        else:
            self.state[entry.key] = entry.value


async def test_fault_1_a_watch_continues_immediately_after_a_server_restart(
    server: EmbeddedServer, bus: NatsBus, connect
) -> None:
    """Fault 1: a KV watch of nats-py is silent for 19.5 s after a restart."""
    heard = Recorder()
    await bus.kv(subjects.KV_NODES).watch(heard)
    await server.restart()
    other = await connect()
    await other.kv(subjects.KV_NODES).put("a", b"after")
    await eventually(lambda: heard.state == {"a": b"after"}, within_s=5)


async def test_fault_1_a_watch_continues_after_its_consumer_was_deleted(bus: NatsBus) -> None:
    """Fault 1: a watcher is not informed that its consumer was deleted; missing heartbeats show it."""
    heard = Recorder()
    kv = bus.kv(subjects.KV_NODES)
    await kv.watch(heard)
    names = await bus.js.call("CONSUMER.NAMES.KV_kerf_nodes", None, dict)
    await bus.js.call(f"CONSUMER.DELETE.KV_kerf_nodes.{names['consumers'][0]}", None, dict)
    await kv.put("a", b"late")
    await eventually(lambda: heard.state == {"a": b"late"}, within_s=8)
    assert bus.stats.watch_restarts == 1


async def test_fault_1_a_watch_follows_a_recreated_bucket_with_lower_revisions(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Fault 1: on a recreated bucket nats-py's watch never resumes; what the wipe took away is reported as absent."""
    heard = Recorder()
    kv = bus.kv(subjects.KV_NODES)
    await kv.put("old", b"1")
    await kv.put("same", b"1")
    await kv.watch(heard)
    assert heard.state == {"old": b"1", "same": b"1"}
    await bus.js.call("STREAM.DELETE.KV_kerf_nodes", None, dict)
    await provision(bus)
    await kv.put("same", b"2")
    await eventually(lambda: heard.state == {"same": b"2"}, within_s=8)
    assert KvEntry(key="old", value=None, revision=0) in heard.entries


async def test_fault_1_a_periodic_resync_reports_only_differences(connect) -> None:
    """A resync without changes does not call the handler."""
    bus = await connect(resync_s=0.2)
    await provision(bus)
    kv = bus.kv(subjects.KV_NODES)
    await kv.put("a", b"1")
    heard = Recorder()
    await kv.watch(heard)
    seen: set[str] = set()

    async def several_rounds() -> bool:
        seen.update((await bus.js.call("CONSUMER.NAMES.KV_kerf_nodes", None, dict))["consumers"] or [])
        return len(seen) >= 4

    await eventually(several_rounds, what="four consumers, one after the other")
    assert [entry.value for entry in heard.entries] == [b"1"]


async def test_fault_2_reading_the_log_does_not_hang_over_a_kill(
    server: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 2: a pull fetch of 20 s blocks for 19.6 s if the server is killed; here a read resumes at its position."""
    term = await bus.append(subjects.LOG_TERM, b"t", fence_subject=subjects.LOG_TERM, fence_sequence=0)
    for number in range(50):
        await bus.append(subjects.LOG_DECISIONS, b"%d" % number, fence_subject=subjects.LOG_TERM, fence_sequence=term)
    read: list[bytes] = []
    async for entry in bus.read_log(start=term + 1):
        read.append(entry.payload)
        if len(read) == 10:
            await server.restart()
    assert read == [b"%d" % number for number in range(50)]
    assert consumer_module.SILENCE_S < 3


async def test_fault_3_a_request_without_connection_is_not_sent_later(
    server: EmbeddedServer, bus: NatsBus, connect
) -> None:
    """Fault 3: nats-py's request raises a time-out while disconnected, and yet is executed after the reconnection."""
    await server.kill()
    await eventually(lambda: not bus.connected)
    with pytest.raises(NotConnected):
        await bus.request("kerf.test.order", b"x", timeout_s=0.2)
    await server.start()
    came: list[bytes] = []

    async def handler(incoming: Incoming) -> None:
        came.append(incoming.payload)

    await (await connect()).subscribe("kerf.test.order", handler)
    await eventually(lambda: bus.connected)
    await bus.publish("kerf.test.order", b"marker")
    await eventually(lambda: came)
    assert came == [b"marker"]


async def test_a_subscription_that_is_cancelled_before_the_server_has_it_is_none(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Fault 20. A survey is cancelled as soon as what it is for has come."""
    before = len(bus._connection.nc._subs)

    async def nothing(_: Incoming) -> None:
        """It is never called."""

    server.freeze()
    asking = asyncio.create_task(bus.subscribe("kerf.test.order", nothing))
    await eventually(lambda: len(bus._connection.nc._subs) == before + 1)
    asking.cancel()
    await asyncio.wait({asking})
    server.thaw()
    assert (len(bus._connection.nc._subs), bus._subscriptions) == (before, [])


async def test_fault_20_a_subscription_is_stopped_while_its_connection_is_replaced(
    server: EmbeddedServer, bus: NatsBus, connect
) -> None:
    """The new server would give it messages: of a queue, in place of another member."""

    async def nothing(_: Incoming) -> None:
        """It is never called."""

    subscription = await bus.subscribe("kerf.test.order", nothing, queue="q")
    server.freeze()
    stopping = asyncio.create_task(subscription.stop())
    await server.restart()
    await stopping
    await eventually(lambda: bus.stats.reconnects == 1 and bus.connected)
    other = await connect()
    assert await bus._connection.settle()
    with pytest.raises(NoResponder):
        await other.request("kerf.test.order", b"", timeout_s=20)


async def test_a_request_that_is_lost_with_its_connection_is_given_up_soon_after_the_next_one(
    server: EmbeddedServer, bus: NatsBus, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been acted on. One that is answered on the next connection is no loss."""
    monkeypatch.setattr(connection_module, "REPLACED_S", 5.0)
    taken: list[Incoming] = []
    other = await connect()

    async def keep(incoming: Incoming) -> None:
        taken.append(incoming)

    await other.subscribe("kerf.test.order", keep)
    lost = asyncio.create_task(bus.request("kerf.test.order", b"lost", timeout_s=300))
    late = asyncio.create_task(bus.request("kerf.test.order", b"late", timeout_s=300))
    await eventually(lambda: len(taken) == 2)
    await server.restart()
    await eventually(lambda: bus.stats.reconnects == 1 and bus.connected and other.connected)
    await other.respond(next(one for one in taken if one.payload == b"late"), b"done")
    assert await late == b"done"
    with pytest.raises(Unknown, match="of a new connection"):
        await asyncio.wait_for(lost, 30)


async def test_fault_3_no_answer_is_unknown_and_the_write_may_have_happened(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Fault 3: a time-out means unknown. The frozen server does execute what it had received; reading back shows it."""
    server.freeze()
    with pytest.raises(Unknown):
        await asyncio.wait_for(bus._log._js.store("KERF_LOG", subjects.LOG_TERM, b"t", {}, timeout_s=0.5), 5)
    server.thaw()
    await eventually(lambda: bus.newest(subjects.LOG_TERM), what="the record that timed out")


async def test_fault_4_an_error_callback_that_fails_does_not_kill_the_connection(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 4: an error_cb that raises ends nats-py's read loop, while is_connected stays true."""

    def broken(error: Exception) -> None:
        raise RuntimeError("a fault in our own callback")

    monkeypatch.setattr(bus._connection, "_note_error", broken)
    await bus._connection.nc._error_cb(ValueError("from nats"))
    assert await bus.alive(timeout_s=2)


async def test_fault_4_alive_asks_the_server_and_survives_a_late_pong(server: EmbeddedServer, bus: NatsBus) -> None:
    """Fault 4: flush() returns on a dead read loop; and a cancelled rtt() lets the late pong kill the read loop."""
    server.freeze()
    assert bus.connected
    assert not await bus.alive(timeout_s=0.3)
    server.thaw()
    await eventually(bus.alive)
    assert bus.stats.reconnects == 0
    assert await bus.js.stream_info("KERF_LOG")


async def test_fault_5_a_frozen_server_is_noticed_within_seconds(server: EmbeddedServer, bus: NatsBus) -> None:
    """Fault 5: with nats-py's defaults a frozen server goes unnoticed for minutes; here for 6 s."""
    server.freeze()
    await eventually(lambda: not bus.connected, within_s=10)
    server.thaw()
    await eventually(lambda: bus.connected)
    assert await bus.alive()


async def test_fault_6_a_ttl_outlives_a_swap(bus: NatsBus) -> None:
    """Fault 6: kv.update drops the TTL, so a lease renewed with it never expires."""
    kv = bus.kv(subjects.KV_LEADER)
    first = await kv.swap("lease", b"me", 0, ttl_s=1)
    await kv.swap("lease", b"me", first, ttl_s=1)

    async def expired() -> bool:
        return (await kv.get("lease")).value is None

    await eventually(expired, within_s=6)


async def test_fault_7_an_expired_key_is_absent_and_can_be_swapped_on_its_revision(bus: NatsBus) -> None:
    """Fault 7: after expiry with a marker kv.create raises KeyWrongLastSequenceError, though nothing is there."""
    kv = bus.kv(subjects.KV_LEADER)
    heard = Recorder()
    await kv.watch(heard)
    await kv.swap("lease", b"me", 0, ttl_s=1)
    await eventually(lambda: any(entry.value is None for entry in heard.entries), within_s=6)
    gone = await kv.get("lease")
    assert gone.value is None
    assert gone.revision > 0
    with pytest.raises(Refused):
        await kv.swap("lease", b"other", 0)
    assert await kv.swap("lease", b"other", gone.revision) > gone.revision


async def test_fault_8_an_answer_echoes_no_headers(bus: NatsBus) -> None:
    """Fault 8: Msg.respond() sends all headers of the request back, Nats-Msg-Id included."""
    seen: list[Incoming] = []

    async def answer(incoming: Incoming) -> None:
        seen.append(incoming)
        await bus.respond(incoming, b"yes")

    await bus.subscribe("kerf.test.ask", answer)
    message = await bus._connection.request("kerf.test.ask", b"?", timeout_s=2, headers={"Nats-Msg-Id": "1", "x": "y"})
    assert seen[0].headers == {"Nats-Msg-Id": "1", "x": "y"}
    assert message.data == b"yes"
    assert not message.headers


async def test_fault_9_reconnects_never_stop_and_a_final_close_is_reported(server: EmbeddedServer, connect) -> None:
    """Fault 9: nats-py gives up after 60 attempts, and most -ERR close it for good, silently."""
    told: list[str] = []
    bus = await connect(on_closed=told.append)
    assert bus._connection.nc.options["max_reconnect_attempts"] == -1
    await bus._connection.nc._process_err("'unknown protocol operation'")  # as the read loop does on such an -ERR
    await eventually(lambda: told)
    assert "closed for good" in told[0]
    assert not bus.connected


async def test_fault_9_a_client_that_stopped_connecting_is_reported(connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 9: an -ERR that came before nats-py took itself for connected closes it without any callback."""
    monkeypatch.setattr("shared.bus.connection.STOPPED_S", 0.3)
    told: list[str] = []
    bus = await connect(on_closed=told.append)
    await bus._connection.nc._close(bus._connection.nc.CLOSED, do_cbs=False)  # as it does then
    await eventually(lambda: told)
    assert "has not tried to connect" in told[0]


async def test_fault_9_an_orderly_close_is_no_alarm(connect) -> None:
    told: list[str] = []
    bus = await connect(on_closed=told.append)
    await bus.drain()
    assert told == []


async def test_fault_10_a_deleted_stream_is_distinguished_from_one_that_is_not_ready(bus: NatsBus) -> None:
    """Fault 10: "no responders" is repeated, because nothing was written, but not if the stream was deleted."""
    await bus.js.call("STREAM.DELETE.KV_kerf_nodes", None, dict)
    with pytest.raises(NoStream, match="provision"):
        await bus.kv(subjects.KV_NODES).put("a", b"1")


async def test_fault_11_a_hanging_handler_does_not_hold_the_drain(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 11: a stuck handler holds nats-py's drain for its whole timeout."""
    monkeypatch.setattr("shared.bus.subscriptions.DRAIN_S", 0.1)
    entered, never = asyncio.Event(), asyncio.Event()

    async def stuck(incoming: Incoming) -> None:
        entered.set()
        await never.wait()

    await bus.subscribe("kerf.test.stuck", stuck, concurrency=4)
    await bus.publish("kerf.test.stuck", b"")
    await entered.wait()
    await asyncio.wait_for(bus.drain(), 10)
    assert not bus.connected


async def test_fault_12_a_stopped_watch_leaves_no_consumer(bus: NatsBus) -> None:
    """Fault 12: watcher.stop() leaves its consumer on the server for 5 minutes."""
    watch = await bus.kv(subjects.KV_NODES).watch(Recorder())
    assert (await bus.js.call("STREAM.INFO.KV_kerf_nodes", None, StreamInfo)).state.consumer_count == 1
    await watch.stop()
    assert (await bus.js.call("STREAM.INFO.KV_kerf_nodes", None, StreamInfo)).state.consumer_count == 0


async def test_fault_12_reading_the_log_leaves_no_consumer(bus: NatsBus) -> None:
    await bus.append(subjects.LOG_TERM, b"t", fence_subject=subjects.LOG_TERM, fence_sequence=0)
    assert [entry.payload async for entry in bus.read_log()] == [b"t"]
    assert (await bus.js.stream_info("KERF_LOG")).state.consumer_count == 0


async def test_fault_13_headers_of_the_caller_are_not_changed(bus: NatsBus) -> None:
    """Fault 13: js.publish(stream=…) writes into the caller's headers."""
    headers = {"a": "b"}
    await bus.publish("kerf.test.x", b"", headers=headers)
    await bus.js.store("KERF_EVENTS", "kerf.v1.event.a.b.ns.c", b"{}", headers, timeout_s=2)
    assert headers == {"a": "b"}


@pytest.mark.parametrize("said", [b"PING\r\n", b'INFO {"server_id":"a"}\r\n', b"PING\r\nPING\r\n"])
async def test_fault_15_what_a_server_says_before_its_answer_is_not_the_answer(
    server: EmbeddedServer, connect, said: bytes
) -> None:
    """Fault 15: nats-py takes the first line for the answer, and is then neither connected nor ever again will be.

    The server pings a client 2 s after it came, also one that it has not let in yet.
    """
    async with Wire(server.port) as wire:
        wire.interject(said)
        bus = await connect(f"nats://127.0.0.1:{wire.port}")
        assert bus.connected
        wire.cut()
        await eventually(lambda: bus.stats.reconnects == 1 and bus.connected)
        assert await bus.alive()


async def test_fault_16_a_server_that_was_discovered_gets_user_and_password_too() -> None:
    """Fault 16: nats-py takes them from each server's own URL, and the addresses that servers tell have none."""
    server = EmbeddedServer(users=(User(name="a", password="b"),))
    async with server, await NatsBus.connect(server.url_as("a")) as bus:
        client = bus._connection.nc
        client._server_pool[:] = [Srv(urlparse(server.url))]
        await server.restart()
        await eventually(lambda: bus.stats.reconnects == 1 and bus.connected)


async def test_fault_17_servers_that_are_gone_are_not_tried_any_more(bus: NatsBus) -> None:
    """Fault 17: nats-py keeps every address that it was ever told, and tries each of them for seconds."""
    client = bus._connection.nc
    for there in (["10.0.0.1:4222", "10.0.0.2:4222"], ["10.0.0.2:4222", "10.0.0.3:4222"]):
        await client._process_info({"connect_urls": there})
    own, *told = sorted(client._server_pool, key=lambda server: server.discovered)
    assert not own.discovered
    assert sorted(server.uri.netloc for server in told) == ["10.0.0.2:4222", "10.0.0.3:4222"]


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_fault_18_attempts_that_end_in_the_middle_leave_nothing_behind(factory: Callable[[], Any]) -> None:
    """Fault 18: uvloop's RuntimeError ends nats-py's attempts, and each that was answered leaves a pinger."""

    async def reset() -> None:
        async with EmbeddedServer() as server, Wire(server.port) as wire:
            bus = await NatsBus.connect(f"nats://127.0.0.1:{wire.port}")
            for words in (1, 2):
                wire.end_after(words, reset=words == 2)
                before = wire.accepted
                wire.cut()
                await eventually(lambda before=before: wire.accepted >= before + 4)
            wire.end_after(0)
            await eventually(bus.alive)
            pingers = [task for task in asyncio.all_tasks() if "_ping_interval" in repr(task.get_coro())]
            assert len(pingers) == 1
            await bus.drain()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(reset())


async def test_refused_clients_ask_more_and_more_rarely() -> None:
    """What reviews tokens is asked by all others too."""
    server = EmbeddedServer(users=(User(name="a", password="b"),))
    async with server, await NatsBus.connect(server.url_as("a")) as bus:
        client = bus._connection.nc
        for _ in range(8):
            await bus._connection._error_cb(Error("nats: -ERR 'Authorization Violation'"))
        assert 3 <= client.options["reconnect_time_wait"] <= REFUSED_WAIT_S
        await server.restart()
        await eventually(lambda: bus.stats.reconnects == 1)
        assert client.options["reconnect_time_wait"] == RECONNECT_WAIT_S
