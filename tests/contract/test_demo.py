"""`kerf demo` as scripts use it: only one JSON object on stdout, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request

from tests.support.command import Command, kerf

FIELDS = {
    "pods_requested",
    "pods_bound",
    "pods_pending",
    "double_bookings",
    "seconds_to_first_bound",
    "seconds_total",
    "allocation_percent",
    "decisions_per_s",
}


async def test_the_demo_prints_one_json_object_and_leaves_nothing_running() -> None:
    done = await kerf("demo", "--pods", "60", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result.keys() >= FIELDS
    assert result["pods_requested"] == 60 == result["pods_bound"] + result["pods_pending"]
    assert result["pods_bound"] >= 50
    assert result["double_bookings"] == 0
    assert 0 < result["seconds_to_first_bound"] <= result["seconds_total"]
    assert 50 < result["allocation_percent"] <= 100
    assert result["decisions_per_s"] > 0
    assert done.left == ()


async def test_the_demo_for_people_explains_a_waiting_pod_and_shows_a_trace() -> None:
    done = await kerf("demo", "--pods", "60")
    assert done.code == 0, done.err
    assert "of 60 pods bound" in done.out
    assert "0 double bookings" in done.out
    assert "kerf why" in done.out
    assert "kerf trace" in done.out
    assert "placement" in done.out.split("kerf trace")[1]


async def test_the_demo_stays_with_its_live_page_until_it_is_interrupted() -> None:
    command = await Command.start("demo", "--pods", "20", "--stay")
    err = command.process.stderr
    assert err is not None
    said = b""
    while b"stays at " not in said:
        said = await asyncio.wait_for(err.readline(), 60)
        assert said, "the demo ended before it stayed"
    address = said.decode().split("stays at ")[1].split()[0]
    page = await asyncio.to_thread(_get, address)
    assert "<title>Kerf</title>" in page
    command.process.send_signal(signal.SIGINT)
    done = await command.done()
    assert (done.code, done.left) == (0, ())


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


async def test_a_demo_without_pods_is_an_error() -> None:
    done = await kerf("demo", "--pods", "0", "--json")
    assert (done.code, done.out) == (1, "")
    assert "--pods must be at least 1" in done.err


async def test_an_interrupted_demo_prints_nothing_and_leaves_nothing_running() -> None:
    command = await Command.start("demo", "--pods", "400", "--json")
    err = command.process.stderr
    assert err is not None
    while b"services are up" not in (line := await asyncio.wait_for(err.readline(), 30)):
        assert line, "the demo ended before its services were up"
    command.process.send_signal(signal.SIGINT)
    done = await command.done()
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
    assert done.left == ()
