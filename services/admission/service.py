"""Admission's door: an HTTPS server that answers the API server's reviews. It needs neither bus nor Kubernetes."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from aiohttp import web

from services.admission import webhook
from services.admission.certificates import Certificates
from services.admission.dialects import Setting, Vgpu, dialects
from services.admission.messages import Allowed, Policy, Refused
from services.admission.profiles import DEBUG, Profile
from shared.model.units import MIB, quantity, whole
from shared.service import Context, Service
from shared.service.http import EVERYWHERE, bound_to
from shared.service.settings import Count, CountOrNone, Patience, Percent, Port

PATH = "/mutate"
PATH_SCHEDULER = "/mutate/scheduler/{name}"
"""For pods that name this scheduler, all of whose pods are Kerf's: everywhere, or in namespaces with a label."""
PATH_PLAIN_NVIDIA = "/mutate/plain-nvidia"
"""For namespaces that opted in by label: the webhook's configuration selects them, so the service need not look them
up."""

PATH_DEBUG = "/mutate/profile/debug"
"""For pods of namespaces with this profile, in canonical form already. The profile `train` changes no pod: the API
server's policy refuses what contradicts it."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Admission's settings."""

    host: str = EVERYWHERE
    port: Port = 8443
    """0 takes a free port."""
    certificate_file: str = ""
    key_file: str = ""
    """Both empty: plain HTTP, on a loopback address only (the simulated cluster)."""
    excluded_namespaces: tuple[str, ...] = ("kube-system", "kerf-system")
    plain_nvidia_namespaces: tuple[str, ...] = ()
    takeover_schedulers: tuple[str, ...] = ()
    """Beside those that the webhook's configuration names."""
    debug_namespaces: tuple[str, ...] = ()
    train_namespaces: tuple[str, ...] = ()
    """Both beside the namespaces with the label kerf.dev/profile."""
    debug_memory_percent: Annotated[int, msgspec.Meta(ge=1, le=99)] = 25
    """As the policies have it: what a pod of the profile `debug` gets of each whole GPU that it names."""
    dialects: tuple[str, ...] = ()
    """Empty: all."""
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    hami_memory_factor: Count = 1
    hami_default_gpus: CountOrNone = 1
    hami_default_memory_mib: CountOrNone = 0
    hami_default_cores: Percent = 0
    hami_high_priority_class: str = ""
    default_priority_class: str = ""
    """The cluster's PriorityClass with globalDefault: a pod that has it has named none. Empty: there is none."""
    volcano_memory_factor: Count = 1
    watcher_accounts: tuple[str, ...] = ("system:serviceaccount:kerf-system:kerf-watcher",)
    quota_gpu_memory: str = "80Gi"
    """As the policies have it: what a GPU's memory counts as under ResourceQuota."""
    quota_least_milli: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """As the policies have it: thousandths of a GPU that a slice of each GPU counts at least under ResourceQuota."""
    max_body_bytes: Count = 8 << 20
    """etcd takes objects of 1.5 MiB; a review carries two of them."""
    reload_every_s: Count = 10
    serve_on_s: Patience = 0.0
    """How long it still answers when it is told to end: for so long requests may come, by connections that were routed
    before its end was known. The API server repeats no review."""

    def __post_init__(self) -> None:
        if quantity(self.quota_gpu_memory) < MIB:
            raise ValueError(f"quota_gpu_memory is {self.quota_gpu_memory}; write a GPU's memory, such as 80Gi")
        if both := sorted(set(self.debug_namespaces) & set(self.train_namespaces)):
            raise ValueError(f"debug_namespaces and train_namespaces both name {', '.join(both)}; keep one")

    def policy(self, *, plain_nvidia: bool = False, scheduler: str = "", profile: Profile = "") -> Policy:
        """`scheduler`: one that the webhook's configuration takes over. `profile`: the one that it selects by label."""
        hami = Vgpu(
            memory_factor=self.hami_memory_factor,
            default_gpus=self.hami_default_gpus,
            default_memory_mib=self.hami_default_memory_mib,
            default_cores=self.hami_default_cores,
            high_priority_class=self.hami_high_priority_class,
        )
        return Policy(
            setting=Setting(
                plain_nvidia=plain_nvidia,
                gpushare_unit=self.gpushare_unit,
                default_priority_class=self.default_priority_class,
                hami=hami,
                volcano=Vgpu(memory_factor=self.volcano_memory_factor),
            ),
            dialects=self.dialects or None,
            takeover_schedulers=(*self.takeover_schedulers, *((scheduler,) if scheduler else ())),
            excluded_namespaces=self.excluded_namespaces,
            plain_nvidia_namespaces=self.plain_nvidia_namespaces,
            profile=profile,
            debug_namespaces=self.debug_namespaces,
            train_namespaces=self.train_namespaces,
            debug_memory_percent=self.debug_memory_percent,
            watcher_accounts=self.watcher_accounts,
            quota_gpu_bytes=whole(self.quota_gpu_memory),
            quota_least_milli=self.quota_least_milli,
        )


class UnknownDialectError(ValueError):
    """A dialect that is to be read and that nothing here can read."""


class InsecureError(ValueError):
    """Plain HTTP on an address that others can reach."""


class Admission(Service):
    name: ClassVar[str] = "admission"
    config_type: ClassVar[type] = Config
    needs_bus: ClassVar[bool] = False

    async def start(self, ctx: Context) -> None:
        """Raises InsecureError, OSError or ssl.SSLError where it cannot serve as configured, PluginError or
        UnknownDialectError for a dialect that cannot be used."""
        self._ctx, self._config = ctx, ctx.config
        config: Config = ctx.config
        known = [dialect.name for dialect in dialects()]
        if unknown := sorted(set(config.dialects) - set(known)):
            raise UnknownDialectError(
                f"dialects names {', '.join(unknown)}; there are {', '.join(known)}. Leave it out to read all"
            )
        self._reviews = ctx.metrics.counter(
            "kerf_admission_reviews_total",
            "Reviews by outcome: refused, malformed, unchanged, completed (a pod without GPUs), or the pod's dialect.",
            ("outcome",),
        )
        app = web.Application(client_max_size=config.max_body_bytes)
        app.router.add_post(PATH, self._handler(lambda _: config.policy()))
        app.router.add_post(PATH_PLAIN_NVIDIA, self._handler(lambda _: config.policy(plain_nvidia=True)))
        app.router.add_post(
            PATH_SCHEDULER, self._handler(lambda request: config.policy(scheduler=request.match_info["name"]))
        )
        app.router.add_post(PATH_DEBUG, self._handler(lambda _: config.policy(profile=DEBUG)))
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, bound_to(config.host), config.port, ssl_context=self._tls(config))
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        ctx.log.info("admission_listening", host=config.host, port=self.port, tls=bool(config.certificate_file))
        ctx.health.set("webhook", ok=True, detail=f"port {self.port}")

    async def drain(self) -> None:
        """Answers what has come and what comes for `serve_on_s`, and takes no more."""
        config: Config = self._config
        await asyncio.sleep(config.serve_on_s)
        await self._runner.cleanup()

    def _tls(self, config: Config) -> ssl.SSLContext | None:
        if not config.certificate_file:
            if not _is_loopback(config.host):
                raise InsecureError(
                    f"admission has no certificate_file and listens on {config.host}; set certificate_file and "
                    "key_file, or a loopback host"
                )
            return None
        certificates = Certificates(Path(config.certificate_file), Path(config.key_file))
        self._ctx.spawn(self._reload(certificates, config.reload_every_s), name="certificates")
        return certificates.context

    async def _reload(self, certificates: Certificates, every_s: int) -> None:
        unreadable = ""
        metrics = self._ctx.metrics
        metrics.observe_by(
            "kerf_admission_certificate_expires_timestamp_seconds",
            "When the certificate in use ends.",
            lambda: certificates.expires.timestamp(),  # noqa: PLW0108 - of the pair that is in use then
        )
        metrics.observe_by(
            "kerf_admission_certificate_unreadable",
            "1 while the certificate's files cannot be used, and the pair that was read before is.",
            lambda: bool(unreadable),
        )
        while True:
            await asyncio.sleep(every_s)
            try:
                if certificates.refresh():
                    self._ctx.log.info("certificate_reloaded")
                unreadable = ""
            except (OSError, ValueError) as error:
                self._ctx.log.error("certificate_unreadable", error=str(error))
                unreadable = str(error)
            # All replicas have the same files: a pair that cannot be read takes none of them out of the Service while
            # the one in use is valid.
            ended = datetime.now(UTC) >= certificates.expires
            detail = (
                f"the certificate in use {'ended' if ended else 'ends'} at {certificates.expires:%Y-%m-%d %H:%M} UTC"
            )
            if unreadable:
                detail += f"; its files cannot be used: {unreadable}"
            self._ctx.health.set("certificate", ok=not ended, detail=detail)

    def _handler(
        self, policy_of: Callable[[web.Request], Policy]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            try:
                asked = webhook.read(body)
            except webhook.Malformed as error:
                self._reviews.of("malformed").add()
                self._ctx.log.warning("review_malformed", error=str(error))
                return web.Response(status=400, text=f"{error}\n")
            return web.Response(body=self._answer(asked, policy_of(request)), content_type="application/json")

        return handle

    def _answer(self, asked: webhook.Asked, policy: Policy) -> bytes:
        """The API server assigns a pod's UID only after admission (seen on 1.36), so this span is a trace of its own;
        the annotation lets the pod's trace link to it."""
        with self._ctx.telemetry.span("admission.review", kind="server") as span:
            decided, payload = webhook.answer(asked, policy, traceparent=span.traceparent if span.sampled else "")
            outcome = _outcome(decided)
            span.set("kerf.outcome", outcome)
            self._reviews.of(outcome).add()
            if isinstance(decided, Refused):
                span.set("kerf.code", decided.code)
                self._ctx.log.info("pod_refused", code=decided.code, namespace=asked.request.namespace)
        return payload

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def _outcome(decided: Allowed | Refused) -> str:
    if isinstance(decided, Refused):
        return "refused"
    return decided.dialect or ("completed" if decided.patches else "unchanged")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SERVICE = Admission
