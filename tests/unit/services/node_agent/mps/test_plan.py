"""Which MPS daemons start, stop and start again, and what containers are told. Statuses are those of NVIDIA's pages."""

from __future__ import annotations

import pytest

from services.node_agent.mps.plan import (
    FAULT_PATIENCE_S,
    HUNG_S,
    MAX_RETRY_S,
    STEADY_S,
    Decision,
    Memory,
    Seen,
    Server,
    decide,
    started,
)

GPU = "GPU-1"
RUNS = Seen(control=7, servers=(Server(8, "ACTIVE"),))
KNOWN = Memory(control=7, server=8)


def judge(seen: Seen, memory: Memory | None, now_s: float = 100.0, *, needed: bool = True) -> Decision:
    return decide(GPU, needed, seen, memory, now_s)


def kind(decision: Decision) -> str:
    return "" if decision.trouble is None else decision.trouble.kind


def test_the_first_slice_of_a_gpu_starts_its_daemon_and_the_last_one_ends_it() -> None:
    first = judge(Seen(), None)
    assert (first.verb, kind(first)) == ("start", "")
    assert first.memory is not None
    running = judge(RUNS, started(first.memory, 7, 8, 100.0))
    assert (running.verb, kind(running)) == (None, "")
    assert judge(RUNS, running.memory, needed=False) == Decision("stop", None)
    assert judge(Seen(), None, needed=False) == Decision(None, None)


def test_what_an_earlier_agent_has_left_of_a_daemon_is_removed() -> None:
    """Its folder may be there without a process, and a server without its daemon."""
    assert judge(Seen(), Memory(), needed=False).verb == "stop"
    assert judge(Seen(servers=(Server(8),)), None, needed=False).verb == "stop"
    assert judge(Seen(servers=(Server(8),)), None).verb == "restart"


def test_a_daemon_that_has_ended_is_told_once_and_started_again_with_a_back_off() -> None:
    ended = judge(Seen(), KNOWN)
    assert (ended.verb, kind(ended)) == ("start", "daemon")
    waits, memory, now_s = [], ended.memory, 100.0
    for _ in range(10):
        assert memory is not None
        assert judge(Seen(), memory, memory.retry_s - 0.1).verb is None
        waits.append(memory.retry_s - now_s)
        now_s = memory.retry_s
        again = judge(Seen(), memory, now_s)
        assert (again.verb, kind(again)) == ("start", "")
        memory = again.memory
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (1.0, 2.0, MAX_RETRY_S)


def test_a_daemon_that_has_run_for_a_while_starts_again_at_once() -> None:
    failing = started(Memory(failures=5, retry_s=90.0), 7, 8, 100.0)
    early, later = judge(RUNS, failing, 101.0).memory, judge(RUNS, failing, 100.0 + STEADY_S).memory
    assert early is not None
    assert later is not None
    assert (early.failures, later.failures) == (5, 0)


def test_an_agent_that_restarts_takes_over_a_daemon_in_silence() -> None:
    adopted = judge(RUNS, Memory(control=7, server=8))
    assert (adopted.verb, kind(adopted)) == (None, "")
    unknown = judge(RUNS, None)
    assert (unknown.verb, kind(unknown), unknown.memory and unknown.memory.control) == (None, "", 7)


def test_a_daemon_that_another_one_has_replaced_is_told() -> None:
    replaced = judge(Seen(control=17, servers=(Server(18, "ACTIVE"),)), KNOWN)
    assert (replaced.verb, kind(replaced)) == (None, "daemon")
    assert kind(judge(Seen(control=17, servers=(Server(18, "ACTIVE"),)), replaced.memory)) == ""


def test_a_fault_is_told_once_and_ends_the_server_only_if_its_clients_do_not_end() -> None:
    faulty = Seen(control=7, servers=(Server(8, "FAULT"),))
    told = judge(faulty, KNOWN, 100.0)
    assert (told.verb, kind(told)) == (None, "fault")
    waiting = judge(faulty, told.memory, 99.9 + FAULT_PATIENCE_S)
    assert (waiting.verb, kind(waiting)) == (None, "")
    recovered = judge(RUNS, waiting.memory, 105.0)
    assert (recovered.verb, kind(recovered)) == (None, "")
    assert kind(judge(faulty, recovered.memory, 200.0)) == "fault", "another one"
    ended = judge(faulty, waiting.memory, 100.0 + FAULT_PATIENCE_S)
    assert (ended.verb, kind(ended)) == ("restart", "")


@pytest.mark.parametrize("servers", [(), (Server(9, "ACTIVE"),)])
def test_a_server_that_has_ended_is_told_and_the_daemon_starts_its_successor(servers: tuple[Server, ...]) -> None:
    ended = judge(Seen(control=7, servers=servers), KNOWN)
    assert (ended.verb, kind(ended)) == (None, "server")
    assert kind(judge(Seen(control=7, servers=servers), ended.memory)) == ""


def test_a_daemon_that_does_not_answer_is_started_again_after_a_while() -> None:
    silent = Seen(control=7, answers=False)
    first = judge(silent, KNOWN, 100.0)
    assert (first.verb, kind(first)) == (None, "")
    last = judge(silent, first.memory, 100.0 + HUNG_S)
    assert (last.verb, kind(last)) == ("restart", "hung")
    answered = judge(RUNS, first.memory, 105.0)
    assert judge(silent, answered.memory, 100.0 + HUNG_S).verb is None, "it counts from the new silence"
