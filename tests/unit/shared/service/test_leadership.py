"""The leader lease: usually one holder at a time, renewed, released, and expiring."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.service import Leadership
from shared.service import leadership as leadership_module
from shared.service.leadership import PROBES
from tests.support.nats_cluster import NatsCluster, provision_cluster
from tests.support.waiting import eventually


class Candidate:
    def __init__(self, bus: NatsBus, name: str, ttl_s: float = 5.0, *, long_s: float = 3600.0) -> None:
        self.said: list[str] = []
        self.serves = True
        self.heard: list[bool] = []
        self.leadership = Leadership(
            bus,
            "placement",
            name,
            on_elected=self.elected,
            on_lost=self.lost,
            serves=lambda: self.serves,
            on_served=self.heard.append,
            ttl_s=ttl_s,
            long_s=long_s,
        )
        self.task = asyncio.create_task(self.leadership.run())

    async def elected(self) -> None:
        self.said.append("elected")

    async def lost(self) -> None:
        self.said.append("lost")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})
        await self.leadership.release()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    async with await NatsBus.connect(server.url) as made:
        await provision(made)
        yield made


async def test_one_of_two_candidates_leads_and_the_other_knows_which(bus: NatsBus) -> None:
    one, two = Candidate(bus, "one"), Candidate(bus, "two")
    await eventually(lambda: one.said or two.said)
    leader, follower = (one, two) if one.said else (two, one)
    await eventually(lambda: follower.leadership.holder == ("one" if leader is one else "two"))
    assert follower.said == []
    await leader.stop()
    await eventually(
        lambda: follower.said == ["elected"], within_s=3, what="the follower is elected without waiting for the TTL"
    )
    await follower.stop()


async def test_each_candidate_knows_whether_the_leader_serves(bus: NatsBus) -> None:
    leader = Candidate(bus, "one")
    leader.serves = False
    await eventually(lambda: leader.said)
    other = Candidate(bus, "two")
    await eventually(lambda: other.leadership.holder == "one")
    leader.serves = True
    await eventually(lambda: (leader.heard, other.heard) == ([True], [True]), what="both hear that it serves")
    leader.serves = False
    await eventually(lambda: (leader.heard, other.heard) == ([True, False], [True, False]), what="and that it does not")
    other.serves = False
    await leader.stop()
    await eventually(lambda: other.said)
    other.serves = True
    await eventually(lambda: other.heard == [True, False, True], what="the successor serves")
    await other.stop()


async def test_a_candidate_of_an_earlier_version_hears_that_a_leader_leads_before_it_serves(bus: NatsBus) -> None:
    """It takes any other answer for that of a process that does not lead, and would take its expired key."""
    leader = Candidate(bus, "one")
    leader.serves = False
    await eventually(lambda: leader.said)
    subject = subjects.candidate("placement", "one")
    assert await bus.request(subject, b"", timeout_s=5) == leadership_module.LEADING
    assert await bus.request(subject, leadership_module.SERVES, timeout_s=5) == leadership_module.PREPARING
    leader.serves = True
    assert await bus.request(subject, leadership_module.SERVES, timeout_s=5) == leadership_module.LEADING
    await leader.stop()


async def test_another_leader_serves_when_it_says_so(bus: NatsBus) -> None:
    """One that is slow to answer is what it said last."""
    answers = {b"one": leadership_module.LEADING}
    probes: list[Incoming] = []

    async def listen(name: bytes) -> None:
        async def probed(incoming: Incoming) -> None:
            probes.append(incoming)
            if name in answers:
                await bus.respond(incoming, answers[name])

        await bus.subscribe(subjects.candidate("placement", name.decode()), probed)

    async def probed_again() -> None:
        seen = len(probes)
        await eventually(lambda: len(probes) >= seen + 3, what="probes")

    await listen(b"one")
    await listen(b"two")
    kv = bus.kv(subjects.KV_LEADER)
    await kv.put("placement", b"one", ttl_s=3600)
    third = Candidate(bus, "three", ttl_s=3600.0)
    await eventually(lambda: third.heard == [True])
    del answers[b"one"]
    await probed_again()
    assert third.heard == [True]
    await kv.put("placement", b"two", ttl_s=3600)
    await eventually(lambda: third.heard == [True, False])
    answers[b"two"] = leadership_module.PREPARING
    await probed_again()
    assert third.heard == [True, False]
    answers[b"two"] = leadership_module.LEADING
    await eventually(lambda: third.heard == [True, False, True])
    await third.stop()


async def test_a_free_key_is_left_to_a_newer_process_for_a_moment(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a rolling upgrade costs one takeover."""
    monkeypatch.setattr(leadership_module, "LEFT_S", 3600.0)
    leader = Candidate(bus, "leader")
    await eventually(lambda: leader.said)
    old, new = Candidate(bus, "old", long_s=0.0), Candidate(bus, "new")
    await eventually(lambda: old.leadership.holder == new.leadership.holder == "leader")
    await leader.stop()
    await eventually(lambda: new.said == ["elected"])
    await new.stop()
    await eventually(lambda: old.leadership.holder == "", what="the old one sees that the key is free")
    assert old.said == []
    monkeypatch.setattr(leadership_module, "LEFT_S", 1.0)
    await eventually(lambda: old.said == ["elected"], what="the old one, as there is no newer one")
    await old.stop()


async def test_a_dead_leader_is_succeeded_after_its_ttl(bus: NatsBus) -> None:
    """The key expires; the watch wakes the candidate."""
    dead = Candidate(bus, "dead", ttl_s=1.0)
    await eventually(lambda: dead.said == ["elected"])
    dead.task.cancel()
    heir = Candidate(bus, "heir", ttl_s=1.0)
    await eventually(lambda: heir.said == ["elected"], within_s=8)
    await heir.stop()


async def test_a_leader_whose_process_has_ended_is_succeeded_long_before_its_ttl(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    own = await NatsBus.connect(server.url)
    dead = Candidate(own, "dead", ttl_s=3600.0)
    await eventually(lambda: dead.said == ["elected"])
    heir = Candidate(bus, "heir", ttl_s=3600.0)
    await eventually(lambda: heir.leadership.holder == "dead")
    dead.task.cancel()
    await own.close()  # as the kernel does to the sockets of a process that was killed
    await eventually(lambda: heir.said == ["elected"], what="the successor is elected without the TTL")
    await heir.stop()


async def test_a_leader_that_is_there_and_does_not_answer_is_left_to_its_ttl(bus: NatsBus) -> None:
    probes: list[Incoming] = []

    async def frozen(incoming: Incoming) -> None:
        probes.append(incoming)

    await bus.subscribe(subjects.candidate("placement", "frozen"), frozen)
    revision = await bus.kv(subjects.KV_LEADER).swap("placement", b"frozen", 0, ttl_s=3600)
    heir = Candidate(bus, "heir", ttl_s=3600.0)
    await eventually(lambda: len(probes) >= PROBES + 2)
    assert heir.said == []
    assert (await bus.kv(subjects.KV_LEADER).get("placement")).revision == revision
    await heir.stop()


async def test_a_leader_keeps_its_key_over_many_ttls(bus: NatsBus) -> None:
    """Renewal restarts the TTL each time; the revision shows that it happened."""
    leader = Candidate(bus, "one", ttl_s=1.0)
    await eventually(lambda: leader.said)
    kv = bus.kv(subjects.KV_LEADER)
    first = (await kv.get("placement")).revision

    async def renewed() -> bool:
        return (await kv.get("placement")).revision >= first + 8

    await eventually(renewed, within_s=10)
    assert leader.said == ["elected"]
    await leader.stop()


async def test_a_key_taken_by_another_is_noticed(bus: NatsBus) -> None:
    leader = Candidate(bus, "one")
    await eventually(lambda: leader.said)
    await bus.kv(subjects.KV_LEADER).put("placement", b"usurper", ttl_s=5)
    await eventually(lambda: leader.said == ["elected", "lost"], within_s=3)
    assert leader.leadership.holder == "usurper"
    await leader.stop()


async def test_a_leader_that_cannot_renew_stops_leading_within_its_ttl(server: EmbeddedServer, bus: NatsBus) -> None:
    leader = Candidate(bus, "one", ttl_s=1.0)
    await eventually(lambda: leader.said)
    await server.kill()
    await eventually(lambda: leader.said == ["elected", "lost"], within_s=12)
    await eventually(lambda: leader.heard == [True, False], what="no leader is known to serve")
    await server.start()
    await eventually(lambda: leader.said == ["elected", "lost", "elected"])
    await eventually(lambda: leader.heard == [True, False, True])
    await leader.stop()


async def test_a_wipe_of_the_store_leads_to_one_leader_again(server: EmbeddedServer, bus: NatsBus) -> None:
    one, two = Candidate(bus, "one", ttl_s=1.0), Candidate(bus, "two", ttl_s=1.0)
    await eventually(lambda: one.said or two.said)
    await server.restart(wipe=True)
    await eventually(lambda: bus.connected)
    await provision(bus)

    async def agreed() -> bool:
        entry = await bus.kv(subjects.KV_LEADER).get("placement")
        return entry.value is not None and one.leadership.leading != two.leadership.leading

    await eventually(agreed)
    await one.stop()
    await two.stop()


async def test_resigning_lets_another_one_lead(bus: NatsBus) -> None:
    """For a leader whose append was fenced off."""
    one = Candidate(bus, "one")
    await eventually(lambda: one.said)
    one.task.cancel()
    await one.leadership.resign()
    assert (await bus.kv(subjects.KV_LEADER).get("placement")).value is None
    await one.stop()


async def test_a_leader_whose_key_expired_renews_it_and_its_session_goes_on(bus: NatsBus) -> None:
    """As after an election of the NATS servers that took longer than the TTL."""
    leader = Candidate(bus, "one", ttl_s=3600.0)
    await eventually(lambda: leader.said == ["elected"])
    heir = Candidate(bus, "two", ttl_s=3600.0)
    await eventually(lambda: heir.leadership.holder == "one")
    kv = bus.kv(subjects.KV_LEADER)
    expired = (await kv.get("placement")).revision
    await kv.delete("placement")

    async def renewed() -> bool:
        entry = await kv.get("placement")
        return entry.value == b"one" and entry.revision > expired

    await eventually(renewed)
    assert (leader.said, heir.said) == (["elected"], [])
    await heir.stop()
    await leader.stop()


async def test_an_expired_key_is_left_for_a_moment_to_a_holder_that_says_that_it_leads(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership_module, "EXPIRED_S", 3600.0)
    probes: list[Incoming] = []
    leads = True

    async def probed(incoming: Incoming) -> None:
        probes.append(incoming)
        await bus.respond(incoming, leadership_module.LEADING if leads else b"")

    await bus.subscribe(subjects.candidate("placement", "slow"), probed)
    kv = bus.kv(subjects.KV_LEADER)
    await kv.swap("placement", b"slow", 0, ttl_s=3600)
    heir = Candidate(bus, "heir", ttl_s=3600.0)
    await eventually(lambda: heir.leadership.holder == "slow")
    await kv.delete("placement")
    seen = len(probes)
    await eventually(lambda: len(probes) >= seen + 3, what="probes of an expired key's holder")
    assert heir.said == []
    leads = False
    await eventually(lambda: heir.said == ["elected"])
    await heir.stop()


@pytest.mark.timeout(120)
async def test_a_leader_outlives_the_election_of_its_keys_stream(tmp_path: Path) -> None:
    """The election takes 4 to 9 s, and the TTL is 1 s."""
    async with NatsCluster(tmp_path) as cluster, await NatsBus.connect(cluster.url) as bus:
        await provision_cluster(bus, replicas=3)
        one, two = Candidate(bus, "one", ttl_s=1.0), Candidate(bus, "two", ttl_s=1.0)
        await eventually(lambda: one.said or two.said)
        leader, other = (one, two) if one.said else (two, one)
        killed = await cluster.leader_of(bus, f"KV_{subjects.KV_LEADER}")
        await killed.kill()
        kv = bus.kv(subjects.KV_LEADER)

        async def renewed() -> bool:
            with contextlib.suppress(BusError):
                entry = await kv.get("placement")
                return entry.value is not None and entry.value.decode() == leader.leadership.holder
            return False

        await eventually(renewed, within_s=40)
        assert (leader.said, other.said) == (["elected"], [])
        await other.stop()
        await leader.stop()
