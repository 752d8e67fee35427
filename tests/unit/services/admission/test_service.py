"""Admission over HTTP, as an API server or the simulated cluster meets it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.admission import webhook
from services.admission.certificates import Certificates
from services.admission.core import review
from services.admission.messages import Policy, Request
from services.admission.patch import apply
from services.admission.service import Admission, Config, InsecureError, UnknownDialectError
from shared.service import Context, Lifecycle, run, running
from tests.support.waiting import eventually
from tests.unit.services.admission.pods import asked, container, pod


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    ports: list[int] = []

    class Known(Admission):
        async def start(self, ctx: Context) -> None:
            await super().start(ctx)
            ports.append(self.port)

    async with running(Known, Config(host="127.0.0.1", port=0, **settings)):
        yield f"http://127.0.0.1:{ports[0]}"


async def post(url: str, body: Any) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body if isinstance(body, bytes) else json.dumps(body)) as answer,
    ):
        return answer.status, await answer.text()


async def test_a_review_is_answered_with_a_patch() -> None:
    manifest = pod(container(mem="3"))
    async with serving() as url:
        status, text = await post(f"{url}/mutate", asked(manifest))
    response = json.loads(text)["response"]
    assert (status, response["uid"], response["allowed"], response["patchType"]) == (200, "r1", True, "JSONPatch")
    patched = apply(manifest, json.loads(base64.b64decode(response["patch"])))
    assert patched["spec"]["containers"][0]["resources"]["limits"]["kerf.dev/gpu-memory"] == "3Gi"


async def test_the_path_names_a_scheduler_that_is_taken_over() -> None:
    """The webhook's configuration sends pods there from namespaces that say so: the service cannot look them up."""
    manifest = pod(container(), schedulerName="volcano")
    async with serving() as url:
        _, taken = await post(f"{url}/mutate/scheduler/volcano", asked(manifest))
        _, other = await post(f"{url}/mutate/scheduler/kai-scheduler", asked(manifest))
        _, left = await post(f"{url}/mutate", asked(manifest))
    patch = json.loads(base64.b64decode(json.loads(taken)["response"]["patch"]))
    assert apply(manifest, patch)["spec"]["schedulerName"] == "kerf"
    assert "patch" not in json.loads(other)["response"]
    assert "patch" not in json.loads(left)["response"]


async def test_a_pod_without_gpus_that_is_taken_over_counts_as_completed() -> None:
    found: list[tuple[int, int]] = []

    class Known(Admission):
        async def start(self, ctx: Context) -> None:
            await super().start(ctx)
            found.append((self.port, ctx.http_port))

    config = Config(host="127.0.0.1", port=0, takeover_schedulers=("volcano",))
    async with running(Known, config, lifecycle=Lifecycle(http_port=0)), aiohttp.ClientSession() as session:
        (port, health) = found[0]
        for manifest in (pod(container(), schedulerName="volcano"), pod(container())):
            await post(f"http://127.0.0.1:{port}/mutate", asked(manifest))
        async with session.get(f"http://127.0.0.1:{health}/metrics") as answer:
            text = await answer.text()
    assert 'kerf_admission_reviews_total{outcome="completed"} 1.0' in text
    assert 'kerf_admission_reviews_total{outcome="unchanged"} 1.0' in text


async def test_settings_of_dialects_are_in_force() -> None:
    manifest = pod(container(**{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3}))
    async with serving(hami_memory_factor=1024) as url:
        _, text = await post(f"{url}/mutate", asked(manifest))
    patch = json.loads(base64.b64decode(json.loads(text)["response"]["patch"]))
    assert apply(manifest, patch)["spec"]["containers"][0]["resources"]["limits"]["kerf.dev/gpu-memory"] == "3072Mi"
    async with serving(dialects=("gpushare",)) as url:
        _, text = await post(f"{url}/mutate", asked(manifest))
    assert "patch" not in json.loads(text)["response"]


async def test_a_dialect_that_does_not_exist_is_no_setting() -> None:
    with pytest.raises(UnknownDialectError, match=r"dialects names hamy; there are gpushare, hami, kai"):
        async with serving(dialects=("hamy",)):
            pass


async def test_a_refusal_contains_the_reason() -> None:
    async with serving() as url:
        status, text = await post(f"{url}/mutate", asked(pod(container(gpu="0.5"))))
    response = json.loads(text)["response"]
    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 403)
    assert response["status"]["message"].startswith("kerf: container 'main': kerf.dev/gpu is 0.5")
    assert response["status"]["message"].endswith("[fraction]")


async def test_warnings_reach_the_user() -> None:
    async with serving() as url:
        _, text = await post(f"{url}/mutate", asked(pod(container(gpu="1"), annotations={"kerf.dev/isolaton": "hard"})))
    assert json.loads(text)["response"]["warnings"] == [
        "annotation kerf.dev/isolaton means nothing to Kerf; did you mean kerf.dev/isolation?"
    ]


async def test_the_path_opts_a_namespace_in() -> None:
    async with serving() as url:
        plain = json.loads((await post(f"{url}/mutate", asked(pod(container(nvidia="1")))))[1])["response"]
        taken = json.loads((await post(f"{url}/mutate/plain-nvidia", asked(pod(container(nvidia="1")))))[1])["response"]
    assert ("patch" in plain, "patch" in taken) == (False, True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "this is no AdmissionReview"),
        (b"hello", "this is no AdmissionReview"),
        (b"[]", "this is no AdmissionReview"),
        (
            {
                "apiVersion": "admission.k8s.io/v1beta1",
                "kind": "AdmissionReview",
                "request": {"uid": "x", "operation": "CREATE"},
            },
            "send AdmissionReview of admission.k8s.io/v1",
        ),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "missing required field `request`"),
        (asked(pod(container()), kind={"kind": "Service"}), "reviews a Service"),
        (asked(None), "without an object"),
        (asked(pod(container()), operation="DELETE"), "operation DELETE"),
        (asked("a pod"), "Expected `object | null`, got `str`"),
    ],
)
async def test_what_is_no_review_is_answered_400_with_the_reason(body: Any, words: str) -> None:
    async with serving() as url:
        status, text = await post(f"{url}/mutate", body)
    assert (status, words in text) == (400, True), text


async def test_a_body_beyond_the_limit_is_not_read() -> None:
    async with serving(max_body_bytes=10_000) as url:
        assert (await post(f"{url}/mutate", asked(pod(container(), annotations={"a": "x" * 20_000}))))[0] == 413


async def test_it_publishes_its_heartbeat() -> None:
    async with serving() as url, aiohttp.ClientSession() as session, session.get(f"{url}/healthz") as answer:
        assert answer.status == 200


async def test_it_answers_for_a_while_after_it_was_told_to_end() -> None:
    """Else pods cannot be created at each rollout: the API server still sends reviews by connections to this one."""
    stop, ready, ports = asyncio.Event(), asyncio.Event(), list[int]()

    class Known(Admission):
        async def start(self, ctx: Context) -> None:
            await super().start(ctx)
            ports.append(self.port)
            self.ctx = ctx
            known.append(self)

    known: list[Known] = []
    config = Config(host="127.0.0.1", port=0, serve_on_s=0.5)
    ends = asyncio.create_task(run(Known, config, stop=stop, ready=ready))
    await ready.wait()
    stop.set()
    await eventually(lambda: known[0].ctx.health.draining)
    assert not known[0].ctx.health.ready, "no new connections come from the Service"
    assert (await post(f"http://127.0.0.1:{ports[0]}/mutate", asked(pod(container(mem="3")))))[0] == 200
    await ends
    with pytest.raises(aiohttp.ClientConnectorError):
        await post(f"http://127.0.0.1:{ports[0]}/mutate", asked(pod(container(mem="3"))))


async def test_plain_http_stays_on_this_machine() -> None:
    with pytest.raises(InsecureError, match="set certificate_file and key_file"):
        async with running(Admission, Config(host="0.0.0.0", port=0)):
            raise AssertionError("it served")


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """And a half-written pair leaves the old one in force."""
    _pair(tmp_path, "first")
    certificates = Certificates(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert not certificates.refresh()
    key = (tmp_path / "tls.key").read_bytes()
    (tmp_path / "tls.key").write_bytes(b"half")
    with pytest.raises(ssl.SSLError):
        certificates.refresh()
    (tmp_path / "tls.key").write_bytes(key)
    certificates.refresh()
    _pair(tmp_path, "second")
    assert certificates.refresh()
    assert not certificates.refresh()
    assert _common_name(certificates.context, tmp_path) == "second"


async def test_a_pair_that_cannot_be_used_leaves_the_webhook_ready_while_the_old_one_is_valid(tmp_path: Path) -> None:
    """Every replica has the same files: all of them at once would leave the Service without one."""
    _pair(tmp_path, "first")
    config = _tls_config(tmp_path)
    async with running(Admission, config) as ctx:
        (tmp_path / "tls.key").write_bytes(b"half")
        await eventually(lambda: _metric(ctx, "certificate_unreadable") == 1, what="the metric")
        assert ctx.health.ready
        assert "its files cannot be used" in ctx.health.report()["parts"]["certificate"]["detail"]
        assert _metric(ctx, "certificate_expires_timestamp_seconds") > time.time()
        _pair(tmp_path, "second")
        await eventually(lambda: _metric(ctx, "certificate_unreadable") == 0, what="the next pair")


async def test_a_certificate_that_has_ended_makes_the_webhook_unready(tmp_path: Path) -> None:
    _ended_pair(tmp_path)
    async with running(Admission, _tls_config(tmp_path)) as ctx:
        await eventually(lambda: not ctx.health.ready, what="the end in the report")
        assert "ended at" in ctx.health.report()["parts"]["certificate"]["detail"]


def _tls_config(folder: Path) -> Config:
    files = {"certificate_file": str(folder / "tls.crt"), "key_file": str(folder / "tls.key")}
    return Config(host="127.0.0.1", port=0, reload_every_s=1, **files)


def _metric(ctx: Context, name: str) -> float:
    lines = ctx.metrics.render().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"kerf_admission_{name} ")), -1.0)


def _ended_pair(folder: Path) -> None:
    """openssl makes none."""
    name, key = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ended")]), ec.generate_private_key(ec.SECP256R1())
    end = datetime.now(UTC) - timedelta(minutes=1)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(end - timedelta(days=1))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(signed.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "tls.key").write_bytes(private)


def _pair(folder: Path, name: str) -> None:
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "1",
            "-subj",
            f"/CN={name}",
            "-keyout",
            str(folder / "tls.key"),
            "-out",
            str(folder / "tls.crt"),
        ],
        check=True,
        capture_output=True,
        env=os.environ,
    )


def _common_name(server: ssl.SSLContext, folder: Path) -> str:
    """The common name in the server's certificate, from a handshake in memory."""
    client = ssl.create_default_context(cafile=str(folder / "tls.crt"))
    client.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (here, there):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    peer = here.getpeercert()
    assert peer is not None
    return str(dict(pair[0] for pair in peer["subject"])["commonName"])  # type: ignore[misc,index]


def test_bytes_and_values_are_judged_alike() -> None:
    body = json.dumps(asked(pod(container(mem="3")))).encode()
    decided, _ = webhook.answer(webhook.read(body), Policy())
    assert decided == review(Request(pod=msgspec.json.decode(body)["request"]["object"], user="alice"), Policy())
