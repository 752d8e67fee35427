"""NVIDIA's nvidia-cuda-mps-control and the fake: what the agent relies on. The real one runs where there is a GPU.

The behaviour is that of https://docs.nvidia.com/deploy/mps (Legacy MPS v2 Interface; Architecture, "Server" and "Client
Attach/Detach"; When to Use MPS, "Memory Protection and Error Containment").
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from services.node_agent.mps.daemon import GUARD_ROUNDS, Daemon, MpsError, Tools, find
from services.node_agent.node_lock import LOCK, NodeLock
from tests.support.waiting import eventually

REAL = shutil.which("nvidia-cuda-mps-control")
SMI = shutil.which("nvidia-smi")
NOT_READY, RPC_FAILURE, OUT_OF_MEMORY = 807, 806, 2

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT, so the MPS daemons' mounts are NOT TESTED")


class Program:
    """A client that uses the GPU when it is told to."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid, self.began = self._process.pid, self._said()

    def use(self, how: str = "") -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        return self._said()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Bench:
    """A daemon, and what its programs are run with."""

    def __init__(self, build: Path, folder: Path, kind: str) -> None:
        if kind == "real" and (REAL is None or SMI is None):
            pytest.skip("NO nvidia-cuda-mps-control, so NVIDIA's own is NOT TESTED on this machine")
        self.libcuda = "libcuda.so.1" if kind == "real" else str(build / "libcuda.so.1")
        self.probe = str(build / "probe")
        uuid = "GPU-00000000-0000-0000-0000-000000000001"
        if kind == "real":
            assert SMI is not None
            command = [SMI, "--query-gpu=uuid", "--format=csv,noheader"]
            uuid = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]
        program = (REAL or "") if kind == "real" else str(build / "nvidia-cuda-mps-control")
        self.lock = NodeLock(folder / LOCK)
        tools = Tools(program=program, environment={"PATH": os.environ["PATH"]}, lock=folder / LOCK, guard_s=0.02)
        self.daemon = Daemon(uuid, folder / uuid, tools)
        self.own = {"KERF_FAKE_CUDA": str(folder / "world"), "KERF_FAKE_CUDA_SMS": "100"}
        self.programs: list[Program] = []

    def program(self, mib: int = 8, **variables: str) -> Program:
        environment = self.own | {"CUDA_MPS_PIPE_DIRECTORY": str(self.daemon.pipe)} | variables
        made = Program([*self.daemon.with_shm, self.probe, self.libcuda, "use", str(mib)], environment)
        self.programs.append(made)
        return made

    def processors(self, **variables: str) -> int:
        environment = os.environ | self.own | {"CUDA_MPS_PIPE_DIRECTORY": str(self.daemon.pipe)} | variables
        command = [*self.daemon.with_shm, self.probe, self.libcuda, "processors", "8"]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return int(said.split(":")[1].split(",")[0])

    async def status(self) -> str:
        (server,) = (await self.daemon.see()).servers
        return server.status

    def end(self) -> None:
        for program in self.programs:
            program.end()


@pytest.fixture(params=["fake", "real"])
async def bench(request: pytest.FixtureRequest, build: Path) -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:
        made = Bench(build, Path(name), request.param)
        assert made.lock.take()
        await made.daemon.start()
        yield made
        made.end()
        made.lock.give_back()
        await made.daemon.remove()
        assert await made.daemon.processes() == ()
        assert not made.daemon.folder.exists()
        await eventually(lambda: not guards(Path(name)), what="the guard ends with its daemon")


def guards(folder: Path) -> list[str]:
    """The shells that look after daemons of this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # no process, or it has just ended
        if "kerf-mps-guard" in words and str(folder / LOCK) in words:
            found.append(process.name)
    return found


def result(code: int) -> str:
    return f'{{"result": {code}}}'


async def test_a_started_daemon_has_an_active_server_before_its_first_client(bench: Bench) -> None:
    seen = await bench.daemon.see()
    assert (seen.control > 0, seen.answers, [server.status for server in seen.servers]) == (True, True, ["ACTIVE"])
    assert await bench.daemon.clients() == frozenset()


async def test_a_second_daemon_is_refused(bench: Bench) -> None:
    before = await bench.daemon.see()
    with pytest.raises(MpsError, match="already running"):
        await Daemon(bench.daemon.uuid, bench.daemon.folder, bench.daemon._tools)._run(
            [*bench.daemon.with_shm, bench.daemon._tools.program, "-d", "-multiuser-server"]
        )
    assert await bench.daemon.see() == before


async def test_a_program_with_the_pipe_directory_is_a_client(bench: Bench) -> None:
    one = bench.program()
    assert (one.began, one.use()) == (result(0), result(0))
    assert await bench.daemon.clients() == {one.pid}
    one.end()
    await eventually(lambda: _clients_are(bench, frozenset()))


async def _clients_are(bench: Bench, wanted: frozenset[int]) -> bool:
    return await bench.daemon.clients() == wanted


async def test_a_client_sees_its_percentage_of_the_multiprocessors(bench: Bench) -> None:
    everything = bench.processors()
    half = bench.processors(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")
    assert 1 <= half <= -(-everything // 2) < everything


async def test_each_client_process_has_the_memory_limit_for_itself(bench: Bench) -> None:
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}
    assert bench.program(600, **limit).began == result(OUT_OF_MEMORY)
    assert [bench.program(300, **limit).began for _ in range(2)] == [result(0), result(0)]


async def test_clients_of_several_users_share_one_server(bench: Bench) -> None:
    """As -multiuser-server has it. Otherwise the second would wait for the end of the first."""
    first = bench.program()
    for path in (bench.daemon.folder.parent, bench.daemon.folder.parent / "world"):
        if path.exists():
            path.chmod(0o777)
    command = ["setpriv", "--reuid=65534", "--clear-groups", bench.probe, bench.libcuda, "use", "8"]
    other = Program(command, bench.own | {"CUDA_MPS_PIPE_DIRECTORY": str(bench.daemon.pipe)})
    bench.programs.append(other)
    assert other.use() == result(0)
    assert first.use() == result(0)
    assert len((await bench.daemon.see()).servers) == 1


async def test_a_fault_ends_the_work_of_all_clients_and_the_server_takes_new_ones_after_their_end(
    bench: Bench,
) -> None:
    bad, good = bench.program(), bench.program()
    assert (bad.use(), good.use()) == (result(0), result(0))
    assert bad.use("fault") != result(0)
    await eventually(lambda: good.use() != result(0))
    await eventually(lambda: _status_is(bench, "FAULT"))
    assert bench.program().began == "", "it has ended, because cuInit was refused"
    bad.end()
    assert await bench.status() == "FAULT"
    good.end()
    await eventually(lambda: _status_is(bench, "ACTIVE"))
    assert bench.program().use() == result(0)


async def _status_is(bench: Bench, wanted: str) -> bool:
    return await bench.status() == wanted


async def test_a_daemon_that_was_killed_leaves_nothing_that_keeps_its_successor_from_starting(bench: Bench) -> None:
    client, control = bench.program(), (await bench.daemon.see()).control
    os.kill(control, signal.SIGKILL)
    await eventually(lambda: _control_is(bench, 0))
    await bench.daemon.stop()
    assert await bench.daemon.processes() == ()
    after, _ = await bench.daemon.start()
    assert after not in (0, control)
    assert client.use() != result(0)
    assert bench.program().use() == result(0)


async def test_a_daemon_of_a_node_whose_agent_is_gone_ends_with_its_last_client(bench: Bench) -> None:
    """The agent holds its lock until it ends, however it ends. One that comes back takes the daemon over."""
    client = bench.program()
    bench.lock.give_back()
    asked = bench.daemon.folder / "log" / "control.log"
    rounds = asked.read_text().count("get_client_list") + 2 * GUARD_ROUNDS
    await eventually(lambda: asked.read_text().count("get_client_list") > rounds, within_s=30)
    assert client.use() == result(0)
    client.end()
    await eventually(lambda: find(bench.daemon.pipe) == (), within_s=30)
    assert bench.lock.take()
    await bench.daemon.start()


async def test_a_daemon_without_clients_stays_while_an_agent_works(bench: Bench) -> None:
    """The guard of a daemon that was started later has found that no agent works, and this one's has not."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:
        tools = msgspec.structs.replace(bench.daemon._tools, lock=Path(name) / LOCK)
        other = Daemon(bench.daemon.uuid, Path(name) / "other", tools)
        await other.start()
        await eventually(lambda: find(other.pipe) == (), within_s=30)
        assert find(bench.daemon.pipe) != ()
        await other.remove()
        await eventually(lambda: not guards(Path(name)))


async def _control_is(bench: Bench, wanted: int) -> bool:
    return (await bench.daemon.see()).control == wanted


async def test_a_daemon_that_does_not_answer_is_ended_all_the_same(bench: Bench) -> None:
    control = (await bench.daemon.see()).control
    os.kill(control, signal.SIGSTOP)
    assert not (await bench.daemon.see()).answers
    await bench.daemon.stop()
    assert find(bench.daemon.pipe) == ()
