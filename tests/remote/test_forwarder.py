"""The forwarder of driver calls: programs get from a remote GPU what they get from a local one, within its slice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interposer.node import MIB, Node, numbers
from tests.remote.remote import FRAME, Relay, Server, hello, mixed, until, welcome

OUT_OF_MEMORY, UNAVAILABLE, LAUNCH_FAILED = 2, 46, 700

Serve = Callable[..., Server]


@pytest.mark.parametrize("way", ["runtime", "threads", "old", "names"])
@pytest.mark.parametrize(
    "command",
    [("mix", "300", "1"), ("mix", "100", "5"), ("capture", "20"), ("fault",), ("copies", "9", "3")],
    ids=" ".join,
)
def test_a_program_prints_what_it_prints_on_a_local_gpu(
    node: Node, serve: Serve, command: tuple[str, ...], way: str
) -> None:
    local = numbers(node.bare("remote", *command, KERF_TEST_WAY=way))
    assert serve().run(*command, KERF_TEST_WAY=way) == local


def test_calls_of_two_threads_keep_the_order_in_which_the_program_made_them(serve: Serve) -> None:
    """The threads pass a turn to each other after each launch, without waiting for the GPU."""
    assert serve().run("order", "200") == [mixed(3, *range(400))]


def test_a_thread_is_cancelled_between_calls_not_during_one(serve: Serve) -> None:
    """Otherwise a lock stays taken, or a ticket's call is never sent, and the other threads wait for ever."""
    assert serve().run("cancel") == [mixed(3, 1, 2)]


def test_the_slices_limit_holds_for_a_remote_program_to_the_byte(serve: Serve) -> None:
    server = serve(limit=64 * MIB)
    assert server.run("limit", "2048") == [32, OUT_OF_MEMORY]
    total, free, _ = server.run("info")
    assert (total, free) == (64 * MIB, 64 * MIB)


def test_two_programs_share_the_limit_of_their_slice(serve: Serve) -> None:
    server = serve(limit=64 * MIB)
    holds = server.client("hold", "48")
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    assert server.run("limit", "2048") == [8, OUT_OF_MEMORY]


def test_memory_of_a_killed_program_is_free_again(serve: Serve) -> None:
    server = serve(limit=64 * MIB)
    holds = server.client("hold", "48")
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    (worker,) = server.workers()
    holds.kill()
    until(lambda: worker not in server.workers())
    assert server.run("limit", "2048") == [32, OUT_OF_MEMORY]


def test_a_forked_child_is_a_program_of_its_own(serve: Serve) -> None:
    first, child, again = serve().run("fork")
    assert (first, child) == (mixed(1, *range(20)), mixed(2, *(2 * i for i in range(20))))
    assert again == first


def test_a_program_whose_server_ends_gets_an_error(serve: Serve) -> None:
    server = serve()
    holds = server.client("hold", "1")
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    (worker,) = server.workers()
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(worker))
    out, err = holds.communicate(input="", timeout=30)
    assert (out, "is gone" in err) == (f"{UNAVAILABLE}\n", True)


def test_a_program_without_a_server_is_told_where_it_looked(serve: Serve, tmp_path: Path) -> None:
    program = serve().client("info", through=tmp_path / "nothing")
    _, err = program.communicate(timeout=30)
    assert program.returncode != 0
    assert str(tmp_path / "nothing") in err


@pytest.mark.parametrize("is_there", [True, False], ids=["with a server", "without"])
def test_a_result_has_its_name_and_description_without_a_server(serve: Serve, tmp_path: Path, is_there: bool) -> None:
    """A program asks for both to say why it cannot begin. Of an unknown result the driver returns NULL."""
    program = serve().client("results", "0", "2", "802", "54321", through=None if is_there else tmp_path / "nothing")
    out, err = program.communicate(timeout=30)
    assert program.returncode == 0, err
    assert out.splitlines() == [
        "0" if is_there else "802",
        "0 CUDA_SUCCESS 0 no error",
        "0 CUDA_ERROR_OUT_OF_MEMORY 0 out of memory",
        "0 CUDA_ERROR_SYSTEM_NOT_READY 0 system not yet initialized",
        "1 NULL 1 NULL",
        "1",
    ]


def test_a_fault_of_one_program_ends_no_other(serve: Serve) -> None:
    server = serve()
    holds = server.client("hold", "1")
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    assert server.run("fault") == [0, LAUNCH_FAILED]
    assert holds.communicate(input="", timeout=30)[0] == "0\n"


def test_launches_are_sent_before_any_answer_comes(serve: Serve, tmp_path: Path) -> None:
    """Answers are held back from the first launch on: a program that waited for one would send no second launch."""
    server = serve()
    with Relay(tmp_path / "relay", server.socket) as relay:
        program = server.client("hold-launches", "500", through=relay.path)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before = relay.sent_bytes
        relay.hold_answers()
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
        until(lambda: relay.sent_bytes - before >= 500 * FRAME.size)
        assert program.poll() is None
        relay.let_answers_pass()
        assert program.communicate(timeout=30)[0] == f"{mixed(1, *range(500))}\n"


def test_copies_on_the_device_put_no_payload_on_the_wire(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with Relay(tmp_path / "relay", server.socket) as relay:
        server.run("copies", "8", "50", through=relay.path)
        # Once to the device and once back, of fifty copies on it.
        assert 8 * MIB <= relay.sent_bytes < 9 * MIB
        assert 8 * MIB <= relay.answered_bytes < 9 * MIB


def test_a_fat_binary_arrives_without_its_wrapper(serve: Serve) -> None:
    """The wrapper points to memory of the program; the server refuses one."""
    assert serve().run("wrapped") == [0]


def test_an_error_of_a_call_without_answer_comes_with_the_next_wait_and_with_no_other_result(serve: Serve) -> None:
    """An allocation that returned it would lose its memory, and a kernel's layout would have no parameters."""
    invalid_value = 1
    assert serve().run("deferred") == [0, 1, 0, invalid_value, 0, mixed(5, 7)]


def test_a_malformed_call_ends_its_own_process_alone(serve: Serve) -> None:
    server = serve()
    holds = server.client("hold", "1")
    assert holds.stdout is not None
    assert holds.stdout.readline() == "1\n"
    calls = _calls(server)
    life = hello(server.socket, calls=calls, process=7)
    assert welcome(life) == (calls, True)
    speaks = hello(server.socket, calls=calls, process=7, life=False)
    assert welcome(speaks) == (calls, True)
    speaks.sendall(FRAME.pack(16, 40, 1, 0) + b"\xff" * 16)
    assert speaks.recv(1) == b""
    assert life.recv(1) == b""
    assert holds.communicate(input="", timeout=30)[0] == "0\n"


def test_a_client_of_another_version_is_refused(serve: Serve) -> None:
    server = serve()
    right = _calls(server)
    assert welcome(hello(server.socket, calls=right + 1, process=9)) == (right, False)


def test_processes_beyond_the_most_are_refused_and_find_room_when_others_end(serve: Serve) -> None:
    server = serve()
    calls = _calls(server)
    lives = [hello(server.socket, calls=calls, process=100 + i) for i in range(64)]
    assert all(welcome(life)[1] for life in lives)
    assert not welcome(hello(server.socket, calls=calls, process=300))[1]
    lives.pop().close()
    until(lambda: len(server.workers()) == 63)
    assert welcome(hello(server.socket, calls=calls, process=301))[1]


def _calls(server: Server) -> int:
    return welcome(hello(server.socket, calls=0, process=5))[0]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
