"""Following public events: nothing missed over restarts, from a stored position, and after a wipe from the start."""

from __future__ import annotations

from shared.bus.embedded import EmbeddedServer
from shared.bus.jetstream import Reply
from shared.bus.nats_bus import NatsBus
from shared.bus.port import LogEntry
from shared.bus.provision import provision
from shared.contracts import subjects
from tests.support.waiting import eventually

SUBJECT = "kerf.v1.event.pod.bound.ns.team"


class Reducer:
    def __init__(self) -> None:
        self.entries: list[LogEntry] = []

    async def __call__(self, entry: LogEntry) -> None:
        self.entries.append(entry)
        if entry.payload == b"poison":
            raise ValueError("cannot digest")

    @property
    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.entries]


async def publish(bus: NatsBus, *payloads: bytes) -> None:
    for payload in payloads:
        bus.publish_event(SUBJECT, payload, f"id-{payload.decode()}")
    assert await bus._events.flushed(20)


async def test_it_reads_past_messages_and_continues(bus: NatsBus) -> None:
    await publish(bus, b"1", b"2")
    reducer = Reducer()
    follower = await bus.follow_events(reducer)
    await publish(bus, b"3")
    await eventually(lambda: reducer.payloads == [b"1", b"2", b"3"])
    await follower.stop()
    later = Reducer()
    await bus.follow_events(later, start=reducer.entries[-1].sequence)
    await publish(bus, b"4")
    await eventually(lambda: later.payloads == [b"3", b"4"])


async def test_a_restart_of_the_server_loses_and_doubles_nothing(server: EmbeddedServer, bus: NatsBus) -> None:
    reducer = Reducer()
    await bus.follow_events(reducer)
    await publish(bus, b"before")
    await eventually(lambda: reducer.payloads == [b"before"])
    await server.restart()
    await eventually(lambda: bus.stats.reconnects == 1)
    await publish(bus, b"after")
    await eventually(lambda: reducer.payloads == [b"before", b"after"])


async def test_a_recreated_stream_is_followed_from_its_beginning(server: EmbeddedServer, bus: NatsBus) -> None:
    """Its sequences begin again, lower than our position: no message would ever arrive from there."""
    await publish(bus, b"1", b"2", b"3")
    reducer = Reducer()
    await bus.follow_events(reducer)
    await eventually(lambda: len(reducer.entries) == 3)
    await server.restart(wipe=True)
    await eventually(lambda: bus.stats.reconnects == 1)
    await provision(bus)
    await publish(bus, b"new")
    await eventually(lambda: reducer.payloads == [b"1", b"2", b"3", b"new"])
    assert reducer.entries[-1].sequence == 1


async def test_a_recreated_stream_that_has_grown_beyond_the_place_is_known_by_its_time(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The place was remembered, and its owner was away while the stream was recreated and filled."""
    await publish(bus, b"1", b"2")
    before = Reducer()
    follower = await bus.follow_events(before)
    await eventually(lambda: len(before.entries) == 2)
    await follower.stop()
    place = before.entries[-1]
    again = Reducer()
    follower = await bus.follow_events(again, start=place.sequence, stream=place.stream)
    await eventually(lambda: again.entries == [place])
    await follower.stop()
    await server.restart(wipe=True)
    await eventually(lambda: bus.stats.reconnects == 1)
    await provision(bus)
    await publish(bus, b"a", b"b", b"c")
    after = Reducer()
    await bus.follow_events(after, start=place.sequence + 1, stream=place.stream)
    await eventually(lambda: after.payloads == [b"a", b"b", b"c"])


async def test_an_event_that_the_handler_cannot_take_is_passed_over_and_counted(bus: NatsBus) -> None:
    reducer = Reducer()
    await bus.follow_events(reducer)
    await publish(bus, b"poison", b"food")
    await eventually(lambda: reducer.payloads == [b"poison", b"food"])
    assert bus.stats.handler_failures == 1


async def test_events_that_the_stream_dropped_before_they_were_read_are_counted(bus: NatsBus) -> None:
    """Its reader was away for longer than the stream keeps events. Without a position nothing is missed."""
    await publish(bus, b"1", b"2", b"3", b"4", b"5")
    await bus.js.call(f"STREAM.PURGE.{subjects.STREAM_EVENTS}", {"seq": 4}, Reply)
    new, later = Reducer(), Reducer()
    await bus.follow_events(new)
    await eventually(lambda: new.payloads == [b"4", b"5"])
    assert bus.stats.events_missed == 0
    await bus.follow_events(later, start=2)
    await eventually(lambda: later.payloads == [b"4", b"5"])
    assert bus.stats.events_missed == 2
