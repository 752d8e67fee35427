"""A real Kubernetes control plane on loopback: etcd, API server and, on request, controller manager and scheduler.

For tests, benches and demos. No nodes run: Node objects are whatever the test creates.

    python -m tools.control_plane up   --state DIR [--controllers] [--scheduler]     prints the KUBECONFIG path
    python -m tools.control_plane down --state DIR
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools import pki
from tools.binaries import REQUIRED, NoBinaries, find_binaries

__all__ = ["ControlPlane", "NoBinaries", "find_binaries", "free_ports"]

_PR_SET_PDEATHSIG = 1


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class ControlPlane:
    """One control plane, with all that belongs to it under `state`. Start it, use `kubeconfig()`, stop it.

    `with_parent`: its processes die with the thread that started them, however that ends.
    """

    def __init__(
        self,
        state: Path,
        *,
        controllers: bool = False,
        scheduler: bool = False,
        binaries: Path | None = None,
        apiserver_flags: Sequence[str] = (),
        with_parent: bool = True,
    ) -> None:
        self.state = state.resolve()
        self.pki = self.state / "pki"
        self.controllers = controllers
        self.scheduler = scheduler
        wanted = [
            *REQUIRED,
            *(["kube-controller-manager"] if controllers else []),
            *(["kube-scheduler"] if scheduler else []),
        ]
        self.binaries = binaries or find_binaries(wanted)
        self.apiserver_flags = tuple(apiserver_flags)
        self.with_parent = with_parent
        self.etcd_port, self.etcd_peer_port, self.port, self.controllers_port, self.scheduler_port = free_ports(5)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> ControlPlane:
        """Returns when the API server is ready. Raises RuntimeError with the end of its log where it will not be."""
        self.state.mkdir(parents=True, exist_ok=True)
        pki.create_authority(self.pki)
        pki.issue(self.pki, "apiserver", "/CN=kube-apiserver", names=pki.SERVER_NAMES, server=True)
        for name, subject in (
            ("admin", "/O=system:masters/CN=admin"),
            ("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
            ("proxy", "/CN=front-proxy-client"),
        ):
            pki.issue(self.pki, name, subject)
        try:
            self._start_etcd()
            self.start_api_server()
            if self.controllers:
                self.start_controllers()
            if self.scheduler:
                self._start_scheduler()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """SIGKILL to all: their orderly ends are slow, and nothing here outlives them."""
        for process in reversed(self.processes.values()):
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes.clear()

    def kill_api_server(self) -> None:
        process = self.processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def start_api_server(self) -> None:
        """On the port of before, so that clients find it again."""
        disabled = (
            [] if self.controllers else ["ServiceAccount", "TaintNodesByCondition"]
        )  # nothing would do their other half
        p = self.pki
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={p}/apiserver.crt",
            f"--tls-private-key-file={p}/apiserver.key",
            f"--client-ca-file={p}/ca.crt",
            f"--kubelet-client-certificate={p}/kubelet-client.crt",
            f"--kubelet-client-key={p}/kubelet-client.key",
            "--kubelet-preferred-address-types=Hostname,InternalIP",
            f"--requestheader-client-ca-file={p}/ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            f"--proxy-client-cert-file={p}/proxy.crt",
            f"--proxy-client-key-file={p}/proxy.key",
            f"--service-account-key-file={p}/sa.pub",
            f"--service-account-signing-key-file={p}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            *([f"--disable-admission-plugins={','.join(disabled)}"] if disabled else []),
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--event-ttl=10m",
            "--shutdown-delay-duration=0s",
            "--v=1",
            *self.apiserver_flags,
        )
        self._wait("kube-apiserver", "/readyz")

    def compact(self) -> None:
        """Forgets all history in etcd up to now, through its JSON gateway; the next watch from an old version answers
        410.

        A running API server would still serve watches from its own memory: restart it.
        """
        revision = self._etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def _etcd(self, path: str, body: object) -> dict[str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.etcd_port, timeout=30)
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            answer: dict[str, dict[str, str]] = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(f"etcd answered {response.status} to {path}: {answer}")
            return answer
        finally:
            connection.close()

    def kubeconfig(self, user: str = "admin", *, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig that authenticates as `user` (such as system:serviceaccount:kerf:watcher) in `groups`."""
        file = "admin" if user == "admin" else "user-" + user.replace(":", "-").replace("/", "-")
        if not (self.pki / f"{file}.crt").exists():
            pki.issue(self.pki, file, "".join(f"/O={group}" for group in groups) + f"/CN={user}")
        path = self.pki / f"{file}.kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "kerf",
                    "clusters": [
                        {
                            "name": "kerf",
                            "cluster": {"server": self.server, "certificate-authority": str(self.pki / "ca.crt")},
                        }
                    ],
                    "users": [
                        {
                            "name": user,
                            "user": {
                                "client-certificate": str(self.pki / f"{file}.crt"),
                                "client-key": str(self.pki / f"{file}.key"),
                            },
                        }
                    ],
                    "contexts": [{"name": "kerf", "context": {"cluster": "kerf", "user": user}}],
                },
                indent=1,
            )
        )
        return path

    def service_account(self, namespace: str, name: str) -> Path:
        return self.kubeconfig(
            f"system:serviceaccount:{namespace}:{name}",
            groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
        )

    def request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        """One blocking request as admin, for set-up and for looking at what became of things. Raises OSError."""
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=30)
        try:
            payload = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, payload, {"Content-Type": content_type})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time of each process so far."""
        tick = os.sysconf("SC_CLK_TCK")
        return {name: sum(map(int, _stat(process.pid)[11:13])) / tick for name, process in self.processes.items()}

    def _start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.etcd_peer_port}"
        self._spawn(
            "etcd",
            "--name=kerf",
            f"--data-dir={self.state}/etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=kerf={peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        )

    def start_controllers(self, which: str = "*,-node-lifecycle-controller") -> None:
        """`which` as its flag --controllers. Returns when the default namespace has its account, where that is one's
        work."""
        config = self.kubeconfig("system:kube-controller-manager")
        self._spawn(
            "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.controllers_port}",
            f"--service-account-private-key-file={self.pki}/sa.key",
            f"--root-ca-file={self.pki}/ca.crt",
            f"--cluster-signing-cert-file={self.pki}/ca.crt",
            f"--cluster-signing-key-file={self.pki}/ca.key",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            f"--controllers={which}",
            "--v=1",
        )
        if which.startswith("*"):
            self._wait("kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default")

    def _start_scheduler(self) -> None:
        config = self.kubeconfig("system:kube-scheduler")
        self._spawn(
            "kube-scheduler",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.scheduler_port}",
            "--leader-elect=false",
            "--kube-api-qps=2000",
            "--kube-api-burst=4000",
            "--v=1",
        )

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.binaries / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent if self.with_parent else None,  # noqa: PLW1509  (the child only calls prctl)
            )

    def _wait(self, name: str, path: str, limit_s: float = 90.0) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            if self.processes[name].poll() is not None:
                raise RuntimeError(f"{name} ended with status {self.processes[name].returncode}: {self._log_end(name)}")
            try:
                if self.request("GET", path)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass  # not listening yet; the limit below tells
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} is not ready after {limit_s:.0f} s: {self._log_end(name)}")
            time.sleep(0.03)

    def _log_end(self, name: str) -> str:
        return (self.state / f"{name}.log").read_text(errors="replace")[-2000:]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc(5): utime is the 12th of these)."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _up(state: Path, *, controllers: bool, scheduler: bool) -> None:
    names = [
        *REQUIRED,
        *(["kube-controller-manager"] if controllers else []),
        *(["kube-scheduler"] if scheduler else []),
    ]
    plane = ControlPlane(
        state,
        controllers=controllers,
        scheduler=scheduler,
        binaries=find_binaries(names, build=True),
        with_parent=False,
    ).start()
    (state / "pids.json").write_text(json.dumps({name: process.pid for name, process in plane.processes.items()}))
    sys.stdout.write(f"{plane.kubeconfig()}\n")


def _down(state: Path) -> None:
    record = state / "pids.json"
    for name, pid in json.loads(record.read_text()).items():
        # The process id may belong to another process by now.
        if alive(pid) and name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode():
            os.kill(pid, signal.SIGKILL)
    record.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.control_plane", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument(
        "--state", type=Path, required=True, help="a directory of its own; etcd's data and the keys go there"
    )
    parser.add_argument("--controllers", action="store_true")
    parser.add_argument("--scheduler", action="store_true")
    arguments = parser.parse_args()
    if arguments.verb == "up":
        _up(arguments.state, controllers=arguments.controllers, scheduler=arguments.scheduler)
    else:
        _down(arguments.state)


if __name__ == "__main__":
    main()
