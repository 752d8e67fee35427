"""`kerf doctor` on the webhook's certificates."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

import pytest

from cli.doctor.base import Finding, Site
from cli.doctor.certificates import SECRET, Certificates
from services.operator import certificates as pki

NOW_S = time.time()
OWN, OTHER = (pki.new_authority(NOW_S, 365, os.urandom) for _ in range(2))
LEAF = pki.issue(OWN, ("kerf-admission",), NOW_S, 90, os.urandom, client=False)


class Cluster(Site):
    """With an entry of the webhook for each bundle; None: it has none."""

    bundles: tuple[str | None, ...] = ()

    async def get(self, path: str) -> Any:
        if path == SECRET:
            return {"data": {"tls.crt": _encoded(LEAF.certificate)}}
        configs = [{} if bundle is None else {"caBundle": _encoded(bundle)} for bundle in self.bundles]
        return {"webhooks": [{"name": f"w{i}", "clientConfig": config} for i, config in enumerate(configs)]}


def _encoded(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()


async def found(*bundles: str | None) -> list[Finding]:
    return await Certificates()._of_webhook(Cluster(url="", user="", bundles=bundles))


async def test_a_ca_of_several_entries_is_judged_once() -> None:
    own, other = OWN.pem.certificate, OTHER.pem.certificate
    assert [one.status for one in await found(own, own, other + own)] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (None, "the webhook kerf-dialects has no caBundle for w1"),
        (OTHER.pem.certificate, "no CA of the webhook kerf-dialects for w1 has issued the webhook's certificate"),
    ],
    ids=["no CA", "the CA of another"],
)
async def test_every_entry_needs_the_ca_of_the_certificate(last: str | None, says: str) -> None:
    (failed,) = [one for one in await found(OWN.pem.certificate, last) if one.status == "fail"]
    assert failed.text.startswith(f"{says}: ")
