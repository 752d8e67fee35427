"""What a review costs: `python -m bench.admission [--json]`. CPU of this process, bytes in to bytes out, without
HTTP."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from services.admission import webhook
from services.admission.messages import Policy

ROUNDS = 5_000


def manifest(**limits: str) -> dict[str, Any]:
    container = {"name": "main", "image": "example", "resources": {"limits": limits, "requests": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [container]},
    }


CASES = {
    "no gpu": manifest(cpu="1"),
    "canonical": manifest(**{"kerf.dev/gpu-memory": "16Gi", "kerf.dev/gpu-compute": "30"}),
    "gpushare": manifest(**{"aliyun.com/gpu-mem": "3"}),
    "refused": manifest(**{"kerf.dev/gpu": "500m"}),
}


def cost_us(pod: dict[str, Any]) -> float:
    request = {"uid": "r", "kind": {"kind": "Pod"}, "namespace": "default", "operation": "CREATE", "object": pod}
    body = json.dumps({"apiVersion": webhook.API_VERSION, "kind": "AdmissionReview", "request": request}).encode()
    policy, begun = Policy(), time.process_time()
    for _ in range(ROUNDS):
        webhook.answer(webhook.read(body), policy)
    return round((time.process_time() - begun) / ROUNDS * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = {name: cost_us(pod) for name, pod in CASES.items()}
    if parser.parse_args().json:
        print(json.dumps({"cpu_us_a_review": found}))
        return
    for name, cost in found.items():
        print(f"{name:12} {cost:7.1f} µs")


if __name__ == "__main__":
    main()
