"""`kerf resize` on a running stack with hollow nodes: real NATS, placement, watcher and agents."""

from __future__ import annotations

from tests.contract.test_cli import CliCluster
from tests.contract.test_cli import cluster as cluster


async def test_a_running_slice_grows_and_shrinks(cluster: CliCluster) -> None:
    """`half` has 20 of a GPU's 40 GiB; isolation soft, so its amounts are accounted only."""
    for amount in ("30Gi", "8Gi"):
        done = await cluster.kerf("resize", "team/half", "--memory", amount, "--wait")
        assert done.code == 0, done.err
        assert f"its slices have what it wants: {amount[:-2]} GiB (main)" in done.out
        shown = await cluster.kerf("inspect")
        assert f"{amount[:-2]}/160 GiB" in shown.out
    why = await cluster.json("why", "team/half")
    assert why["resize"] == {
        "wanted": "memory=8Gi",
        "phase": "done",
        "sentence": "its slices have what it wants: 8 GiB (main)",
    }


async def test_what_does_not_fit_waits_says_what_lacks_and_can_be_given_up(cluster: CliCluster) -> None:
    done = await cluster.kerf("resize", "team/half", "--memory", "50Gi", "--wait", "--timeout", "2")
    assert done.code == 1
    assert "waiting: Insufficient memory on GPU" in done.err
    assert "it needs 30 GiB more, and 20 GiB of 40 GiB are free" in done.err
    assert "its resize is waiting: Insufficient memory" in (await cluster.kerf("why", "team/half")).out.replace(
        "\n  ", " "
    )
    done = await cluster.kerf("resize", "team/half", "--cancel")
    assert "the slices of pod half stay as they are" in done.out


async def test_what_can_never_be_is_refused(cluster: CliCluster) -> None:
    done = await cluster.kerf("resize", "team/half", "--memory", "8Gi", "--container", "other", "--wait")
    assert done.code == 1
    assert "refused: annotation kerf.dev/resize names container 'other'; those with GPUs are main" in done.err
    done = await cluster.kerf("resize", "team/half", "--memory", "much")
    assert "'much' is not a Kubernetes quantity" in done.err
    done = await cluster.kerf("resize", "team/half")
    assert "by --memory or --compute, or --cancel" in done.err
    done = await cluster.kerf("resize", "nothing", "--memory", "8Gi")
    assert "there is no pod default/nothing" in done.err
