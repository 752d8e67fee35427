"""`kerf demo --kube`: the same replay on a control plane that it starts and ends itself."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.cluster import binaries_or_skip
from tests.support.command import Command, kerf
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


async def test_the_demo_binds_on_a_real_api_server() -> None:
    binaries_or_skip()
    done = await kerf("demo", "--pods", "60", "--kube", "--json", within_s=120)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["pods_bound"] >= 50
    assert result["pods_bound"] + result["pods_pending"] == 60
    assert (result["double_bookings"], result["cluster"]) == (0, "a real Kubernetes API server")
    assert done.left == ()


async def test_interrupted_it_ends_what_it_started() -> None:
    binaries_or_skip()
    command = await Command.start("demo", "--pods", "60", "--kube", "--json")
    await eventually(
        lambda: any("kube-apiserver" in line for line in command.running()),
        within_s=60,
        what="the API server's process",
    )
    command.process.send_signal(signal.SIGINT)
    done = await command.done(within_s=60)
    assert (done.code, done.out, done.left) == (130, "", ()), done.err
