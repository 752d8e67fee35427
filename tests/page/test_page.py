"""The live page in headless Chromium: on a running cluster, by keyboard alone, and at 5,000 GPUs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from cli.stack import Stack, stack
from cli.up import apply, node_object
from services.metrics.page.fleet import Fleet as PageFleet
from services.metrics.page.server import STATIC
from services.metrics.page.server import Page as PageServer
from services.metrics.page.sign_in import Caller, Denied
from services.metrics.page.sign_in.none import NoSignIn
from services.metrics.service import Config, MetricsService
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import SimAnswer, SimDelete
from shared.model.gpu import Gpu, Inventory
from shared.service import Context, running
from tests.support.browser import opened
from tests.support.fleet import answer_for_placement, publish_fleet
from tests.support.waiting import eventually
from tests.unit.services.metrics.page.test_server import Answers, Clock, Fleet

pytestmark = pytest.mark.xdist_group("page")
NODES = [{"name": f"gpu-{i}", "model": "NVIDIA-H200", "count": 4, "memory_mib": 143_771} for i in range(3)]
USED = {"button", "link", "textbox", "searchbox", "spinbutton", "combobox", "radio", "application"}
"""Roles that need a name."""
VIEWS = ("fleet", "pod", "what-if", "cost")


def pod(name: str, namespace: str = "team", **limits: str) -> dict[str, Any]:
    resources = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in limits.items()}
    container = {"name": "main", "image": "pause", "resources": {"limits": resources}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"schedulerName": "kerf", "containers": [container]},
    }


@pytest.fixture
async def cluster() -> AsyncIterator[Stack]:
    async with stack(NODES, trace_ratio=1.0, page_port=0) as made:
        await apply(made.bus, [node_object(node) for node in NODES])
        yield made


@pytest.fixture
async def page(cluster: Stack, chromium: Browser, complaints: list[str]) -> AsyncIterator[Page]:
    async with opened(chromium, cluster.page, complaints=complaints) as made:
        yield made


async def drawn(page: Page) -> dict[str, int]:
    """How many pixels of the map have which colour, as "r,g,b"."""
    found: dict[str, int] = await page.evaluate(
        """() => {
        const canvas = document.getElementById("canvas"), counts = {};
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4) {
            const key = `${data[i]},${data[i + 1]},${data[i + 2]}`;
            counts[key] = (counts[key] || 0) + 1;
        }
        return counts;
    }"""
    )
    return found


def rgb(colour: str) -> str:
    return ",".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))


async def test_pods_appear_as_slices_to_scale_and_go_without_a_reload(
    cluster: Stack, page: Page, complaints: list[str]
) -> None:
    await expect(page.locator("#link-text")).to_have_text("live")
    await expect(page.locator("#figures")).to_contain_text("12")
    await apply(cluster.bus, [pod("half", gpu="1", gpu_memory="71885Mi", gpu_compute="50")])
    await expect(page.locator("#decisions")).to_contain_text("team/half")
    await expect(page.locator("#decisions .tag").first).to_have_text("running")
    await expect(page.locator("#legend")).to_contain_text("team")
    blue, free = rgb("#2f6fb7"), rgb("#e6e9ee")

    async def to_scale() -> bool:
        colours = await drawn(page)
        whole = (colours.get(blue, 0) + colours.get(free, 0)) / 12
        return abs(colours.get(blue, 0) - whole / 2) < whole / 20

    await eventually(to_scale)
    answer = decode(
        await cluster.bus.request(subjects.SIM_DELETE, encode(SimDelete(kind="Pod", namespace="team", name="half"))),
        SimAnswer,
    )
    assert answer.refusals == ()

    async def gone() -> bool:
        return (await drawn(page)).get(blue, 0) == 0

    await eventually(gone)
    await expect(page.locator("#decisions .tag").first).to_have_text("ended")
    assert complaints == []


async def test_a_pod_that_waits_is_listed_with_its_reason_and_its_story(
    cluster: Stack, page: Page, complaints: list[str]
) -> None:
    await apply(cluster.bus, [pod("fits", gpu="1"), pod("huge", gpu="4", gpu_memory="900Gi")])
    queue = page.locator("#queue")
    await expect(queue).to_contain_text("team/huge")
    await expect(page.locator("#queue-count")).to_have_text("1")
    await queue.get_by_role("link", name="team/huge").click()
    await expect(page).to_have_url(re.compile(r"#pod/team/huge$"))
    story = page.locator("#pod")
    await expect(story).to_contain_text("waiting")
    await expect(story).to_contain_text("Why not elsewhere")
    await page.get_by_label("Pod", exact=True).fill("fits")
    await page.get_by_role("button", name="Show").click()
    await expect(story).to_contain_text("bound")
    await expect(story).to_contain_text("Enforcement")
    await expect(story).to_contain_text("exclusive")

    async def traced() -> bool:
        await page.get_by_role("button", name="Show").click()
        return "Trace id" in await story.inner_text()

    await eventually(traced)
    await expect(story.get_by_role("table", name="Spans of the pod's trace")).to_contain_text("placement")
    await page.get_by_label("Pod", exact=True).fill("nobody")
    await page.get_by_role("button", name="Show").click()
    await expect(story).to_contain_text("nobody")
    assert complaints == []


async def test_what_if_answers_and_says_what_is_wrong(page: Page, complaints: list[str]) -> None:
    await expect(page.locator("#figures")).to_contain_text("12")
    await page.get_by_role("link", name="What if").click()
    answer = page.locator("#what-if-answer")
    await page.get_by_label("GPU memory in GiB, over all").fill("40")
    await page.get_by_role("button", name="Try it").click()
    await expect(answer).to_contain_text("would fit")
    await page.get_by_label("GPU memory in GiB, over all").fill("4000")
    await page.get_by_role("button", name="Try it").click()
    await expect(answer).to_contain_text("would wait")
    assert complaints == []
    await page.get_by_label("Without the node").fill("nowhere")
    await page.get_by_role("button", name="Try it").click()
    await expect(answer.get_by_role("alert")).to_contain_text("nowhere")


async def test_cost_is_shown_by_namespace(cluster: Stack, page: Page, complaints: list[str]) -> None:
    await apply(cluster.bus, [pod("a", gpu="1"), pod("b", namespace="other", gpu="2")])
    await expect(page.locator("#decisions")).to_contain_text("other/b")

    async def told() -> bool:
        await page.goto(f"{cluster.page}#fleet")
        await page.get_by_role("link", name="Cost").click()
        await expect(page.locator("#cost table")).to_be_visible()
        text = await page.locator("#cost").inner_text()
        return "team" in text and "other" in text and "Idle" in text

    await eventually(told)
    assert complaints == []


async def test_the_map_is_read_by_keyboard_alone(cluster: Stack, page: Page, complaints: list[str]) -> None:
    await apply(cluster.bus, [pod(f"p{i}", gpu="1") for i in range(12)])
    await expect(page.locator("#figures")).to_contain_text("100 %")
    seen: list[str] = []
    for _ in range(30):
        await page.keyboard.press("Tab")
        seen.append(await page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        if seen[-1] == "map":
            break
    assert seen[:2] == ["Skip to the content", "Fleet"]
    assert seen[-1] == "map"
    told = page.locator("#map-current")
    for key, expected in (
        ("Home", "gpu-0, GPU 0, NVIDIA-H200: 140 GiB of 140 GiB memory and 100 % compute in 1 slice."),
        ("ArrowDown", "gpu-0, GPU 1,"),
        ("ArrowRight", "gpu-1, GPU 1,"),
        ("ArrowUp", "gpu-1, GPU 0,"),
        ("End", "gpu-2, GPU 3,"),
        ("ArrowLeft", "gpu-1, GPU 3,"),
    ):
        await page.keyboard.press(key)
        await expect(told).to_contain_text(expected)
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(r"#pod/team/p\d+$"))
    await expect(page.locator("#pod")).to_contain_text("bound")
    await page.reload()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    await expect(page.locator("#view-pod")).to_be_visible()
    assert complaints == []


async def test_everything_that_can_be_used_has_a_name_for_screen_readers(cluster: Stack, page: Page) -> None:
    await apply(cluster.bus, [pod("a", gpu="1"), pod("huge", gpu="4", gpu_memory="900Gi")])
    await expect(page.locator("#queue")).to_contain_text("team/huge")
    session = await page.context.new_cdp_session(page)
    for view in VIEWS:
        await page.goto(f"{cluster.page}#{view}")
        await expect(page.locator(f"#view-{view}")).to_be_visible()
        tree = (await session.send("Accessibility.getFullAXTree"))["nodes"]
        roles = {node.get("role", {}).get("value") for node in tree}
        assert {"banner", "main", "navigation", "heading", "status"} <= roles, view
        used = [node for node in tree if not node.get("ignored") and node.get("role", {}).get("value") in USED]
        assert len(used) >= 6
        assert [node["role"]["value"] for node in used if not node.get("name", {}).get("value")] == [], view
        ids = await page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        assert len(ids) == len(set(ids))
    assert await page.evaluate("document.documentElement.lang") == "en"
    assert await page.title() == "Cost · Kerf"


async def test_the_table_says_what_the_map_shows(cluster: Stack, page: Page, complaints: list[str]) -> None:
    await apply(cluster.bus, [pod("a", gpu="1")])
    await expect(page.locator("#decisions")).to_contain_text("team/a")
    await page.get_by_role("radio", name="Table").check()
    rows = page.locator("#table tbody tr")
    await expect(rows).to_have_count(12)
    await page.get_by_role("searchbox").fill("team/a")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("140 GiB of 140 GiB")
    assert complaints == []


async def test_colours_follow_the_system_and_the_button(
    cluster: Stack, chromium: Browser, complaints: list[str]
) -> None:
    async with opened(chromium, cluster.page, complaints=complaints, theme="dark") as dark:
        background = "getComputedStyle(document.body).backgroundColor"
        assert await dark.evaluate(background) == "rgb(15, 20, 27)"
        await dark.get_by_role("button", name="Switch to light colours").click()
        assert await dark.evaluate(background) == "rgb(244, 245, 247)"
        await dark.reload()
        assert await dark.evaluate(background) == "rgb(244, 245, 247)", "it is remembered"
    assert complaints == []


@pytest.mark.parametrize("width", [390, 768, 1920])
async def test_nothing_is_cut_off_at_any_width(
    cluster: Stack, chromium: Browser, complaints: list[str], width: int
) -> None:
    async with opened(chromium, cluster.page, complaints=complaints, width=width) as page:
        await expect(page.locator("#link-text")).to_have_text("live")
        for view in VIEWS:
            await page.goto(f"{cluster.page}#{view}")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    assert complaints == []


def test_texts_have_enough_contrast_in_light_and_dark() -> None:
    """WCAG 2.2 AA: 4.5 to 1 for text."""
    css = (STATIC / "page.css").read_text()
    for block in re.findall(r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\}", css, re.DOTALL):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for text in ("text", "soft", "accent", "bad", "warn", "good"):
            for ground in ("card", "page") if text in ("text", "soft") else ("card",):
                assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground, colours)
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


async def test_names_of_pods_are_never_markup(page: Page, complaints: list[str]) -> None:
    """Names cannot hold it; a server that is not ours might send it."""
    await page.evaluate("""async () => {
        const { Model } = await import("./model.js"), views = await import("./views.js"), model = new Model();
        const said = { number: 1, at_s: 1, kind: "decided", node: "n", text: "<script>1</script>" };
        model.decisions = [{ ...said, namespace: "<img src=x onerror=alert(1)>", name: "<b>x</b>" }];
        views.decisions(model, 0);
    }""")
    await expect(page.locator("#decisions")).to_contain_text("<b>x</b>")
    assert await page.locator("#decisions img, #decisions b, #decisions script").count() == 0
    assert complaints == []


async def test_a_page_that_outlives_its_server_forgets_what_that_one_said(
    chromium: Browser, complaints: list[str]
) -> None:
    """Another process counts anew: slices that ended in between are not left on the map."""
    answers, first = Answers(), PageFleet(1_000_000)
    first.inventory("old", inventory("old"))
    server = PageServer(first, answers, NoSignIn("127.0.0.1"), session_s=60)
    port = await server.start("127.0.0.1", 0)
    async with opened(chromium, f"http://127.0.0.1:{port}/#fleet", complaints=complaints) as page:
        await page.get_by_role("radio", name="Table").check()
        await expect(page.locator("#table tbody")).to_contain_text("old")
        await server.stop()
        await expect(page.locator("#link")).to_have_attribute("data-state", "lost")
        second = PageFleet(2_000_000)
        second.inventory("new", inventory("new"))
        server = PageServer(second, answers, NoSignIn("127.0.0.1"), session_s=60)
        await server.start("127.0.0.1", port)
        await expect(page.locator("#table tbody")).to_contain_text("new", timeout=20_000)
        await expect(page.locator("#table tbody")).not_to_contain_text("old")
    await server.stop()


async def test_a_page_follows_again_after_an_answer_that_ends_its_stream(
    chromium: Browser, complaints: list[str]
) -> None:
    """A proxy's 502, or a server that knows no session any more: the browser does not connect again by itself, and the
    map stood still for as long as the page was open."""
    fleet, answers = PageFleet(1_000_000), Answers()
    fleet.inventory("old", inventory("old"))
    server = PageServer(fleet, answers, NoSignIn("127.0.0.1"), session_s=60)
    port = await server.start("127.0.0.1", 0)
    async with opened(chromium, f"http://127.0.0.1:{port}/#fleet", complaints=complaints) as page:
        await page.get_by_role("radio", name="Table").check()
        await expect(page.locator("#table tbody")).to_contain_text("old")
        await expect(page.locator("#link")).to_have_attribute("data-state", "live")
        refused: list[str] = []

        async def refuse(route: Route) -> None:
            refused.append(route.request.url)
            await route.fulfill(status=502)

        await page.route("**/api/live*", refuse)
        await server.stop()
        server = PageServer(fleet, answers, NoSignIn("127.0.0.1"), session_s=60)
        await server.start("127.0.0.1", port)
        await eventually(lambda: refused, within_s=20, what="the browser's own attempt")
        await page.unroute("**/api/live*")
        fleet.inventory("new", inventory("new"))
        fleet.inventory("old", None)
        await expect(page.locator("#table tbody")).to_contain_text("new", timeout=20_000)
        await expect(page.locator("#table tbody")).not_to_contain_text("old")
        await expect(page.locator("#link")).to_have_attribute("data-state", "live")
    await server.stop()


def inventory(node: str) -> Inventory:
    return Inventory(node=node, boot_id="b", gpus=(Gpu(uuid=node, index=0, model="H200", memory_mib=1000),))


# --- signing in ---------------------------------------------------------------------------------------------------


class OneToken:
    asks_for_token = True

    async def by_request(self, caller: Caller) -> str:
        raise Denied("sign in with a Kubernetes token", 401)

    def check_form(self, token: str) -> None:
        """Any."""

    async def by_token(self, token: str) -> str:
        if token != "good":
            raise Denied("the API server does not accept the token", 401)
        return "ada"


async def test_a_person_signs_in_with_a_token_and_out_again(
    cluster: Stack, chromium: Browser, complaints: list[str]
) -> None:
    behind = cluster.services["metrics"]
    server = PageServer(*_parts(behind), OneToken(), session_s=60)
    port = await server.start("127.0.0.1", 0)
    try:
        async with opened(chromium, f"http://127.0.0.1:{port}/", complaints=complaints) as page:
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
            await expect(page.locator("#view-fleet")).to_be_hidden()
            await page.keyboard.type("bad")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_have_text("the API server does not accept the token")
            await page.get_by_label("Token").fill("good")
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.locator("#figures")).to_contain_text("12")
            assert "good" not in await page.content()
            await page.get_by_role("button", name="Sign out").click()
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    finally:
        await server.stop()


async def test_the_end_of_a_session_leads_to_the_form(chromium: Browser, complaints: list[str]) -> None:
    """The stream says it while the page is open: nothing more is shown to whoever comes to the screen later."""
    fleet, clock = PageFleet(1_000_000), Clock()
    fleet.inventory("n1", inventory("n1"))
    server = PageServer(fleet, Answers(), OneToken(), session_s=60, monotonic=clock)
    port = await server.start("127.0.0.1", 0)
    async with opened(chromium, f"http://127.0.0.1:{port}/", complaints=complaints) as page:
        await page.get_by_label("Token").fill("good")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#link")).to_have_attribute("data-state", "live")
        clock.now += 61
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=20_000)
        await expect(page.locator("#view-fleet")).to_be_hidden()
    await server.stop()


def _parts(_: Context) -> tuple[Any, Any]:
    """A fleet of twelve GPUs, and figures, for a server of its own."""
    answers = Answers()
    answers.figures = {"gpus": 12, "nodes": 3}
    return Fleet(), answers


# --- 5,000 GPUs ---------------------------------------------------------------------------------------------------


async def test_five_thousand_gpus_are_drawn_searched_and_updated_by_deltas(
    chromium: Browser, complaints: list[str]
) -> None:
    async with EmbeddedServer() as nats, await NatsBus.connect(nats.url) as bus:
        await provision(bus)
        await answer_for_placement(bus, 5000)
        async with running(MetricsService, Config(page_port=0, status_every_s=0.2), bus_url=nats.url) as ctx:
            slices = await publish_fleet(bus, 5000)
            address = ctx.health.report()["parts"]["page"]["detail"]
            async with opened(chromium, address, complaints=complaints) as page:
                await expect(page.locator("#figures")).to_contain_text("5,000")

                async def whole() -> bool:
                    fleet = await page.evaluate("fetch('/api/fleet').then((answer) => answer.json())")
                    counted = sum(len(node["slices"]) for node in fleet["changes"]["nodes"])
                    return bool(counted == slices)

                await eventually(whole, within_s=60)
                await page.reload()
                await expect(page.locator("#legend")).to_contain_text("2 more namespaces")
                await page.focus("#map")
                await page.keyboard.press("End")
                await expect(page.locator("#map-current")).to_contain_text("gpu-0624, GPU 7")
                assert await page.evaluate("document.getElementById('canvas').height") <= 900, "only what is in view"
                await page.get_by_role("searchbox").fill("gpu-0005")
                await page.get_by_role("radio", name="Table").check()
                await expect(page.locator("#table tbody tr")).to_have_count(8)
                await expect(page.locator("#table")).to_contain_text("unhealthy")
                await page.evaluate("""() => { window.sizes = []; const s = new EventSource("/api/live?since=" + 1e15);
                    s.onmessage = (e) => window.sizes.push(e.data.length); }""")

                async def first() -> bool:
                    return bool(await page.evaluate("window.sizes.length > 0"))

                await eventually(first)
                before = await page.evaluate("window.sizes.length")
                await publish_fleet(bus, 8, pending=0, seed=8)

                async def more() -> bool:
                    return bool(await page.evaluate(f"window.sizes.length > {before}"))

                await eventually(more)
                sizes = await page.evaluate("window.sizes")
                assert max(sizes[before:]) < sizes[0] / 50, sizes
    assert complaints == []
