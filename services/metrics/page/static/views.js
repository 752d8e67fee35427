// Queue, decisions, table, a pod's story, what-if and cost.

import { $, ask, duration, gib, h, number, numeric, percent, podLink, table } from "./dom.js";
import { sentence } from "./map.js";

const KINDS = {
  decided: ["placed", "good"],
  enforced: ["running", "good"],
  rejected: ["pending", "warn"],
  ended: ["ended", ""],
  preempted: ["preempts", "warn"],
  gpu: ["GPU", "bad"],
};

const micro = (us) => (us < 1000 ? `${Math.round(us)} µs` : `${(us / 1000).toFixed(1)} ms`);

export function figures(model) {
  const o = model.overview;
  const items = [
    ["GPUs", number(o.gpus || 0), `on ${number(o.nodes || 0)} nodes`],
    ["Compute allocated", percent(o.gpu_milli_allocated, o.gpu_milli_total), ""],
    ["Memory allocated", percent(o.gpu_memory_mib_allocated, o.gpu_memory_mib_total), ""],
    ["Pods bound", number(o.pods_bound || 0), o.pods_holding ? `and ${o.pods_holding} starting` : ""],
    ["Pending", number(o.pods_waiting || 0), o.oldest_wait_s ? `up to ${duration(o.oldest_wait_s)}` : ""],
    [
      "A decision takes",
      o.decide_us_p50 ? micro(o.decide_us_p50) : "–",
      o.decide_us_p99 ? `p99 ${micro(o.decide_us_p99)}` : "",
    ],
    ["Double bookings", number(o.double_bookings || 0), "", (o.double_bookings || 0) > 0],
  ];
  $("figures").replaceChildren(
    ...items.map(([name, value, more, bad]) =>
      h("div", { class: bad ? "bad" : "" }, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null)),
    ),
  );
}

export function legend(model) {
  const names = [...model.colours]
    .filter(([name]) => model.sizes?.has(name))
    .sort((a, b) => model.sizes.get(b[0]) - model.sizes.get(a[0]));
  const shown = names.filter(([, colour]) => colour < 8),
    others = names.length - shown.length;
  const item = (swatch, text) => h("li", {}, h("span", { class: `swatch ${swatch}`, "aria-hidden": "true" }), text);
  $("legend").replaceChildren(
    ...shown.map(([name, colour]) => item(`k${colour}`, name)),
    ...(others ? [item("k8", others === 1 ? "1 more namespace" : `${others} more namespaces`)] : []),
    item("free", "free"),
    item("starting", "starting (paler)"),
    item("bad", "takes no new slices"),
  );
}

export function queue(model, now) {
  const all = model.overview.pods_waiting || model.queue.length;
  $("queue-count").textContent =
    all > model.queue.length && model.queue.length
      ? `${number(all)}, the oldest ${model.queue.length} of those with a reason`
      : number(all);
  keep(
    $("queue"),
    model.queue.length
      ? model.queue.map((p) =>
          h(
            "li",
            {},
            h("div", { class: "head" }, podLink(p.namespace, p.name), h("time", {}, duration(now - p.since_s))),
            h("p", { class: "clamp" }, said(p.sentence)),
            p.helps ? h("p", { class: "help" }, p.helps) : null,
          ),
        )
      : [h("li", { class: "empty" }, "No pod waits.")],
  );
}

export function decisions(model, fresh) {
  keep(
    $("decisions"),
    model.decisions.length
      ? model.decisions.map((d) => {
          const [word, tone] = KINDS[d.kind] || [d.kind, ""];
          const head = d.namespace ? podLink(d.namespace, d.name) : h("span", {}, d.name);
          return h(
            "li",
            { class: d.number > fresh ? "new" : "" },
            h(
              "div",
              { class: "head" },
              h("span", { class: `tag ${tone}` }, word),
              head,
              h(
                "time",
                { datetime: new Date(d.at_s * 1000).toISOString() },
                new Date(d.at_s * 1000).toLocaleTimeString("en-GB"),
              ),
            ),
            h("p", { class: "clamp" }, said(d.text)),
          );
        })
      : [h("li", { class: "empty" }, "Nothing has been decided since this page's server started.")],
  );
}

// A reason without the advice at its end, which is shown beside it.
const said = (sentence) => sentence.split(" What would help:")[0];

// Replaces the rows, and keeps the focus on the link that had it.
function keep(list, rows) {
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const top = list.scrollTop;
  list.replaceChildren(...rows);
  list.scrollTop = top;
  if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

const PAGE = 60;

export class Table {
  constructor(model) {
    this.model = model;
    this.page = 0;
    this.find = "";
  }

  draw() {
    const rows = this.model.order
      .flatMap((node) => node.gpus.map((gpu) => [node, gpu]))
      .filter(
        ([node, gpu]) =>
          !this.find ||
          `${sentence(node, gpu)} ${gpu.slices.map((s) => `${s.namespace}/${s.pod}`).join(" ")}`
            .toLowerCase()
            .includes(this.find),
      );
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const turn = (by) => () => {
      this.page += by;
      this.draw();
      $("table").scrollTop = 0;
    };
    $("table").replaceChildren(
      table(
        ["Node", "GPU", "Model", "State", numeric("Memory"), numeric("Compute"), "Pods"],
        rows
          .slice(this.page * PAGE, (this.page + 1) * PAGE)
          .map(([node, gpu]) => [
            node.name,
            gpu.index,
            gpu.model,
            gpu.state,
            `${gib(gpu.slices.reduce((n, s) => n + s.mib, 0))} of ${gib(gpu.mib)}`,
            `${gpu.slices.reduce((n, s) => n + s.milli, 0) / 10} %`,
            gpu.slices.flatMap((s, i) => [i ? ", " : "", podLink(s.namespace, s.pod)]),
          ]),
      ),
      h(
        "div",
        { class: "pager" },
        h("button", { type: "button", class: "quiet", onclick: turn(-1), disabled: this.page === 0 }, "Previous"),
        h("span", {}, `Page ${this.page + 1} of ${pages}, ${number(rows.length)} GPUs`),
        h("button", { type: "button", class: "quiet", onclick: turn(1), disabled: this.page >= pages - 1 }, "Next"),
      ),
    );
  }
}

export async function pod(namespace, name) {
  const into = $("pod");
  into.replaceChildren(h("p", { class: "empty" }, "Asking placement …"));
  try {
    const story = await ask(`/api/pod?namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}`);
    into.replaceChildren(
      ...explanation(story.why, story.why_error, true),
      ...enforcement(story.slices),
      ...trace(story.trace, story.trace_error),
    );
  } catch (error) {
    into.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    throw error;
  }
}

const TONES = {
  bound: "good",
  holding: "good",
  "would-fit": "good",
  waiting: "warn",
  "would-wait": "warn",
  refused: "bad",
};

function explanation(why, problem, titled) {
  if (!why) return problem ? [h("p", { class: "error" }, problem)] : [];
  const out = [
    h(
      "p",
      { class: "sentence" },
      titled ? h("strong", {}, `${why.namespace}/${why.name} `) : null,
      h("span", { class: `tag ${TONES[why.state] || ""}` }, why.state.replace("-", " ")),
      " ",
      why.helps?.length ? said(why.sentence) : why.sentence,
    ),
  ];
  if (why.waiting_s)
    out.push(
      h(
        "p",
        { class: "hint" },
        `Has waited for ${duration(why.waiting_s)}; ${why.ahead || 0} pods are tried before it.`,
      ),
    );
  if (why.second) out.push(h("p", { class: "hint" }, `Were it placed again now: ${why.second}`));
  if (why.helps?.length)
    out.push(
      h("h3", {}, "What would help"),
      h("ul", { class: "plain" }, ...why.helps.map((text) => h("li", {}, text))),
    );
  if (why.summary?.length) {
    const rows = why.summary.map((reason) => [reason.nodes ?? 1, reason.sentence, h("code", {}, reason.code)]);
    out.push(h("h3", {}, "Why not elsewhere"), table([numeric("Nodes"), "Reason", "Code"], rows));
  }
  if (why.candidates?.length) {
    const because = (scores) =>
      Object.entries(scores || {})
        .map(([k, v]) => `${k} ${v}`)
        .join(", ");
    const rows = why.candidates.slice(0, 5).map((c) => [c.node, c.total, because(c.scores)]);
    out.push(
      h("h3", {}, why.state === "bound" ? "Best nodes for such a pod now" : "Best nodes now"),
      table(["Node", numeric("Score"), "Because"], rows),
    );
  }
  return out;
}

function enforcement(slices) {
  if (!slices?.length) return [];
  const used = (use) =>
    use ? `${gib(use.memory_mib)}${use.hidden_mib ? `, ${gib(use.hidden_mib)} bypass the limit` : ""}` : "not measured";
  const columns = ["Container", "Node", "GPU", "Strategy", "State", "Memory limit", "In use", "Compute"];
  const rows = slices.map((s) => [
    s.container,
    s.node,
    [s.model, " ", h("code", {}, s.uuid)],
    s.strategy || "–",
    s.phase,
    `${gib(s.memory_mib)} of ${gib(s.gpu_memory_mib)}`,
    used(s.use),
    s.compute_milli ? `${s.compute_milli / 10} %` : "what is left",
  ]);
  return [h("h3", {}, "Enforcement"), table(columns, rows)];
}

function trace(answer, problem) {
  const spans = answer?.spans || [];
  if (!spans.length)
    return [h("h3", {}, "Trace"), h("p", { class: "hint" }, problem || "No spans are kept of this pod.")];
  const begin = Math.min(...spans.map((s) => s.start_ns)),
    end = Math.max(...spans.map((s) => s.end_ns)),
    whole = Math.max(1, end - begin);
  const ms = (ns) => {
    const v = ns / 1e6;
    return v >= 1000 ? `${(v / 1000).toFixed(1)} s` : v < 0.05 ? "< 0.1 ms" : `${v.toFixed(v < 10 ? 1 : 0)} ms`;
  };
  const rows = spans.flatMap((s) => {
    const bar = h("i", { class: s.error ? "bad" : "" });
    bar.style.left = `${(100 * (s.start_ns - begin)) / whole}%`;
    bar.style.width = `${Math.max(0.2, (100 * (s.end_ns - s.start_ns)) / whole)}%`;
    return [
      h("span", { role: "cell", title: s.error || s.service }, s.name, " ", h("small", { class: "hint" }, s.service)),
      h("span", { class: "rail", role: "cell", "aria-label": `from ${ms(s.start_ns - begin)}` }, bar),
      h("span", { class: "ms", role: "cell" }, ms(s.end_ns - s.start_ns)),
    ];
  });
  const grouped = [];
  for (let i = 0; i < rows.length; i += 3)
    grouped.push(h("div", { role: "row", class: "trace" }, ...rows.slice(i, i + 3)));
  return [
    h("h3", {}, `Trace, ${ms(end - begin)}`),
    h("div", { role: "table", "aria-label": "Spans of the pod's trace" }, ...grouped),
    h("p", { class: "hint" }, "Trace id ", h("code", {}, answer.trace_id)),
  ];
}

export async function whatIf(form) {
  const into = $("what-if-answer"),
    of = new FormData(form),
    text = (name) => String(of.get(name) || "").trim();
  const asked = {
    namespace: text("namespace") || "default",
    gpus: Number(text("gpus")),
    memory_gib: Number(text("memory_gib")),
    compute_percent: Number(text("compute_percent")),
    model: text("model"),
    isolation: text("isolation"),
    drain: text("drain") ? [text("drain")] : [],
    add_nodes: text("like") ? { like: text("like"), count: 1 } : null,
  };
  into.replaceChildren(h("p", { class: "empty" }, "Trying …"));
  try {
    const { explanation: why, world } = await ask("/api/what-if", {
      method: "POST",
      body: JSON.stringify(asked),
      headers: { "Content-Type": "application/json" },
    });
    const pods = (title, list) =>
      list?.length
        ? [
            h("h3", {}, title),
            h(
              "ul",
              { class: "plain" },
              ...list
                .slice(0, 20)
                .map((p) =>
                  h(
                    "li",
                    {},
                    podLink(p.namespace, p.name),
                    p.node || p.target ? ` on ${p.node || p.target}` : "",
                    p.sentence ? `: ${p.sentence}` : "",
                  ),
                ),
            ),
          ]
        : [];
    into.replaceChildren(
      ...(world
        ? [
            h("p", { class: "sentence" }, world.sentence),
            ...pods("Would move", world.moves),
            ...pods("Would find no place", world.stranded),
            ...pods("Wait now, and would fit", world.fits),
          ]
        : []),
      ...explanation(why, "", false),
    );
  } catch (error) {
    into.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    throw error;
  }
}

export async function cost(model) {
  const into = $("cost");
  try {
    const answer = await ask("/api/cost");
    const priced = Boolean(answer.currency),
      most = Math.max(1e-9, ...answer.rows.map((r) => r.gpu_seconds));
    const money = (value) => (value === null || value === undefined ? "no price" : number(value, 2));
    const capacity = answer.capacity || {};
    const meter = (row) => {
      const bar = h("i", { class: `k${model.colours.get(row.key) ?? 8}` });
      bar.style.width = `${(100 * row.gpu_seconds) / most}%`;
      return h("div", { class: "meter", "aria-hidden": "true" }, bar);
    };
    const columns = [
      "Namespace",
      h("span", { class: "unseen" }, "Part"),
      numeric("GPU hours"),
      numeric("GiB hours"),
      numeric("Slices"),
      ...(priced ? [numeric(answer.currency)] : []),
    ];
    const rows = answer.rows.map((r) => [
      r.key,
      meter(r),
      number(r.gpu_seconds / 3600, 2),
      number(r.memory_mib_seconds / 1024 / 3600, 1),
      number(r.slices),
      ...(priced ? [money(r.cost)] : []),
    ]);
    const totals = [
      ["Allocated", capacity.allocated_gpu_seconds, capacity.allocated_cost],
      ["Idle", capacity.idle_gpu_seconds, capacity.idle_cost],
      ["of it stranded: too little left on a GPU for any usual request", capacity.stranded_gpu_seconds, null],
    ]
      .filter(([, value]) => value !== undefined)
      .map(([name, value, price]) =>
        h(
          "tr",
          {},
          h("td", { colspan: 2 }, name),
          h("td", { class: "number" }, number(value / 3600, 2)),
          h("td"),
          h("td"),
          priced ? h("td", { class: "number" }, price === null || price === undefined ? "" : money(price)) : null,
        ),
      );
    into.replaceChildren(
      h(
        "p",
        { class: "hint" },
        `${answer.since.slice(0, 10)} to now (UTC). A slice counts by the larger of its memory part and its compute part.` +
          (priced ? "" : " No price file is set."),
      ),
      table(columns, rows, totals),
    );
    if (!answer.rows.length) into.append(h("p", { class: "empty" }, "No slice has run this month."));
  } catch (error) {
    into.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    throw error;
  }
}
