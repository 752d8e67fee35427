// Signs in, follows the server, and shows the view that the address names.

import { $, ask, h } from "./dom.js";
import { FleetMap } from "./map.js";
import { Model } from "./model.js";
import * as views from "./views.js";

const model = new Model(),
  map = new FleetMap(model),
  table = new views.Table(model);
const LOST = "connection lost, trying again";
let stream = null,
  trying = false,
  clock = 0; // clock: the server's time less ours, in seconds

function link(state, text) {
  $("link").dataset.state = state;
  if ($("link-text").textContent !== text) $("link-text").textContent = text;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
  map.theme();
}

function arrive(message, fresh = Infinity) {
  const wasEmpty = model.order.length === 0,
    changed = model.apply(message);
  if (message.now_s) clock = message.now_s - Date.now() / 1000;
  views.figures(model);
  if (view() !== "fleet") return;
  if (changed.nodes || changed.reordered || wasEmpty) {
    views.legend(model);
    if (changed.reordered) map.layout();
    else map.draw();
    map.describe();
    if (!$("table").hidden) table.draw();
  }
  if (changed.queue) views.queue(model, now());
  if (changed.decisions) views.decisions(model, fresh);
}

const now = () => Date.now() / 1000 + clock;

async function follow() {
  const first = await ask("/api/fleet");
  first.changes.reset = true; // it is all there is: nodes that went meanwhile are not in it
  arrive(first);
  performance.mark("fleet-painted");
  stream?.close();
  stream = new EventSource(`/api/live?since=${model.version}`);
  stream.onopen = () => link("live", "live");
  stream.onerror = () => {
    link("lost", LOST);
    if (stream.readyState === EventSource.CLOSED) again();
  };
  stream.onmessage = (event) => {
    link("live", "live");
    arrive(JSON.parse(event.data), model.decisions[0]?.number ?? 0);
  };
  stream.addEventListener("signed-out", () => {
    stream.close();
    begin().catch(again);
  });
}

// A browser connects again by itself after a connection that broke, and never after an answer such as 401 or 502: of a
// server that began anew and knows no session, or of a proxy while there is none.
async function again() {
  if (trying) return;
  trying = true;
  for (let pause = 1000; trying; pause = Math.min(2 * pause, 30000)) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      await begin();
      trying = false;
    } catch {
      link("lost", LOST);
    }
  }
}

const view = () => location.hash.slice(1).split("/")[0] || "fleet";

async function show() {
  const [name, ...rest] = (location.hash.slice(1) || "fleet").split("/");
  const known = ["fleet", "pod", "what-if", "cost"].includes(name) ? name : "fleet";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== `view-${known}`;
  for (const anchor of document.querySelectorAll("nav a")) {
    if (anchor.hash === `#${known}`) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  document.title = { fleet: "Kerf", pod: "Pod · Kerf", "what-if": "What if · Kerf", cost: "Cost · Kerf" }[known];
  if (known === "fleet") {
    views.legend(model);
    views.queue(model, now());
    views.decisions(model, Infinity);
    map.layout();
    if (!$("table").hidden) table.draw();
  }
  if (known === "pod" && rest.length === 2) {
    const [namespace, pod] = rest.map(decodeURIComponent);
    $("pod-form").elements.namespace.value = namespace;
    $("pod-form").elements.name.value = pod;
    await views.pod(namespace, pod);
  }
  if (known === "what-if") {
    $("models").replaceChildren(...model.models().map((text) => h("option", { value: text })));
    $("nodes").replaceChildren(...model.order.slice(0, 500).map((node) => h("option", { value: node.name })));
  }
  if (known === "cost") await views.cost(model);
}

// Anything that fails because no user is signed in leads to the form; the rest is shown where it happened.
async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error.status === 401) await begin();
    else if (!error.status) link("lost", error.message);
  }
}

async function begin() {
  const session = await ask("/api/session");
  $("sign-out").hidden = !(session.user && session.token);
  if (!session.user) {
    stream?.close();
    link("", "not signed in");
    for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== "view-sign-in";
    $("sign-in").hidden = $("sign-in-hint").hidden = !session.token;
    $("sign-in-error").textContent = session.token ? "" : session.error;
    if (session.token) $("token").focus();
    return;
  }
  const [shown] = await Promise.allSettled([show()]); // the stream does not wait for a view that fails
  await follow();
  if (shown.reason?.status === 401) throw shown.reason;
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("sign-in-error").textContent = "";
  try {
    await ask("/api/session", {
      method: "POST",
      body: JSON.stringify({ token: $("token").value }),
      headers: { "Content-Type": "application/json" },
    });
    $("token").value = "";
    await guarded(begin);
  } catch (error) {
    $("sign-in-error").textContent = error.message;
    $("token").focus();
  }
});
$("sign-out").addEventListener("click", () =>
  guarded(async () => {
    await ask("/api/session", { method: "DELETE" });
    model.clear();
    await begin();
  }),
);
$("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("kerf-theme", name);
  theme(name);
});
for (const input of document.querySelectorAll("input[name=scale]"))
  input.addEventListener("change", () => {
    map.scale = input.value;
    map.draw();
  });
for (const input of document.querySelectorAll("input[name=shape]"))
  input.addEventListener("change", () => {
    $("map").hidden = input.value !== "map";
    $("table").hidden = input.value !== "table";
    if (input.value === "table") table.draw();
    else map.layout();
  });
$("find").addEventListener("input", () => {
  map.find = table.find = $("find").value.trim().toLowerCase();
  table.page = 0;
  map.draw();
  if (!$("table").hidden) table.draw();
});
$("pod-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const { namespace, name } = event.target.elements,
    hash = `#pod/${encodeURIComponent(namespace.value.trim())}/${encodeURIComponent(name.value.trim())}`;
  if (location.hash === hash) guarded(show);
  else location.hash = hash;
});
$("what-if").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(() => views.whatIf(event.target));
});
window.addEventListener("hashchange", () =>
  guarded(async () => {
    await show();
    $("main").focus({ preventScroll: true });
  }),
);
setInterval(() => {
  if (view() === "fleet" && !$("view-fleet").hidden) views.queue(model, now());
}, 10_000);
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => {
  if (!localStorage.getItem("kerf-theme")) theme(system.matches ? "dark" : "light");
});
theme(localStorage.getItem("kerf-theme") || (system.matches ? "dark" : "light"));
guarded(begin);
