// The map: a block for each node, a bar for each GPU, in it its slices to scale. Only what is in view is drawn.

import { $, gib, h, podLink } from "./dom.js";

const SIZES = [240, 200, 170, 150, 132, 118, 106, 96, 80, 68, 56, 46, 38, 30];
const LABEL = 16,
  HEADING = 20;
const EDGE = 2; // room for the outline of the current GPU

export class FleetMap {
  constructor(model) {
    this.model = model;
    this.scale = "memory";
    this.find = "";
    this.current = null; // [node, gpu] as indexes
    this.box = $("map");
    this.canvas = $("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.wanted = false;
    new ResizeObserver(() => this.layout()).observe(this.box);
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("pointerdown", (event) => this.point(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  // The largest blocks with which all nodes are in view; the smallest ones scroll.
  layout() {
    const width = this.box.clientWidth,
      height = this.box.clientHeight;
    if (!width || !height) return;
    for (const size of SIZES) {
      this.at = this.arrange(size, width);
      if (this.at.height <= height) break;
    }
    $("map-space").style.height = `${Math.max(height, this.at.height)}px`;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.draw();
  }

  // Rows of nodes, each as high as its largest node, under a heading for each GPU model where there are several.
  arrange(size, width) {
    const nodes = this.model.order;
    const bar = Math.max(3, Math.min(22, Math.round(size / 8))),
      step = bar + (bar > 6 ? 2 : 1);
    const gap = size >= 68 ? 14 : size >= 46 ? 9 : 6,
      label = size >= 68 ? LABEL : 0;
    const columns = Math.max(1, Math.floor((width + gap) / (size + gap)));
    const modelOf = (node) => node.gpus[0]?.model ?? "",
      several = nodes.length > 0 && modelOf(nodes[0]) !== modelOf(nodes[nodes.length - 1]);
    const rows = [],
      rowOf = new Array(nodes.length);
    let y = 0;
    for (let i = 0; i < nodes.length;) {
      const model = modelOf(nodes[i]);
      let end = i,
        gpus = 0;
      while (end < nodes.length && modelOf(nodes[end]) === model) gpus += nodes[end++].gpus.length;
      const heading = several ? `${model}: ${gpus} GPUs on ${end - i} ${end - i === 1 ? "node" : "nodes"}` : "";
      for (let first = i; first < end; first += columns) {
        const count = Math.min(columns, end - first),
          head = first === i && heading ? HEADING : 0;
        let most = 1;
        for (let k = first; k < first + count; k++) {
          most = Math.max(most, nodes[k].gpus.length);
          rowOf[k] = rows.length;
        }
        rows.push({
          first,
          count,
          y,
          top: y + head,
          heading: head ? heading : "",
          end: y + head + label + most * step + gap,
        });
        y = rows[rows.length - 1].end;
      }
      y += several ? 6 : 0;
      i = end;
    }
    return { size, bar, gap, label, step, columns, rows, rowOf, height: y };
  }

  draw() {
    if (this.wanted) return;
    this.wanted = true;
    requestAnimationFrame(() => {
      this.wanted = false;
      this.paint();
    });
  }

  theme() {
    const style = getComputedStyle(document.documentElement);
    this.inks = Object.fromEntries(
      ["card", "free", "bad", "soft", "text", "focus", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"].map(
        (name) => [name, style.getPropertyValue(`--${name}`).trim()],
      ),
    );
    this.draw();
  }

  paint() {
    if (!this.at || !this.inks) return;
    const { size, gap, label, rows } = this.at,
      ink = this.inks,
      c = this.context;
    const ratio = window.devicePixelRatio || 1,
      top = this.box.scrollTop,
      height = this.box.clientHeight;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = ink.card;
    c.fillRect(0, 0, this.box.clientWidth, height);
    c.textBaseline = "top";
    for (const row of rows) {
      if (row.end < top || row.y > top + height) continue;
      if (row.heading) {
        c.font = "600 12px system-ui, sans-serif";
        c.fillStyle = ink.soft;
        c.fillText(row.heading, 0, row.y - top + 2);
      }
      c.font = "11.5px system-ui, sans-serif";
      for (let k = 0; k < row.count; k++) {
        const i = row.first + k,
          node = this.model.order[i],
          x = EDGE + k * (size + gap),
          y = row.top - top + EDGE;
        if (label) {
          c.fillStyle = ink.soft;
          c.fillText(shortened(c, node.name, size), x, y);
        }
        node.gpus.forEach((gpu, j) =>
          this.bar(
            node,
            gpu,
            x,
            y + label + j * this.at.step,
            this.current && this.current[0] === i && this.current[1] === j,
          ),
        );
      }
    }
  }

  bar(node, gpu, x, y, current) {
    const { size, bar } = this.at,
      ink = this.inks,
      c = this.context;
    const faded = this.find && !this.matches(node, gpu);
    c.globalAlpha = faded ? 0.18 : 1;
    c.fillStyle = ink.free;
    c.fillRect(x, y, size, bar);
    let left = x;
    const line = size >= 46 ? 1 : 0;
    gpu.slices.forEach((slice, k) => {
      const share = Math.min(1, this.share(slice, gpu));
      const width = Math.max(1, share * size);
      c.globalAlpha =
        (this.find && !this.hits(node, gpu, slice)) || faded
          ? 0.18
          : slice.phase === "starting"
            ? 0.4
            : k % 2
              ? 0.78
              : 1;
      c.fillStyle = ink[`c${this.model.colours.get(slice.namespace) ?? 8}`];
      c.fillRect(left, y, Math.max(1, Math.min(width, x + size - left) - line), bar);
      left = Math.min(x + size - 1, left + width);
    });
    c.globalAlpha = faded ? 0.3 : 1;
    if (gpu.state !== "healthy") {
      c.strokeStyle = ink.bad;
      c.lineWidth = bar > 6 ? 2 : 1;
      c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, size - c.lineWidth, bar - c.lineWidth);
      c.beginPath();
      c.moveTo(x, y + bar);
      c.lineTo(x + size, y);
      c.stroke();
    }
    c.globalAlpha = 1;
    if (current) {
      c.strokeStyle = ink.focus;
      c.lineWidth = 2;
      c.strokeRect(x - 1, y - 1, size + 2, bar + 2);
    }
  }

  share(slice, gpu) {
    return this.scale === "memory" ? slice.mib / (gpu.mib || 1) : slice.milli / 1000;
  }

  hits(node, gpu, slice) {
    return `${node.name} ${gpu.uuid} ${gpu.model} ${slice.namespace}/${slice.pod}`.toLowerCase().includes(this.find);
  }

  matches(node, gpu) {
    return (
      `${node.name} ${gpu.uuid} ${gpu.model}`.toLowerCase().includes(this.find) ||
      gpu.slices.some((slice) => this.hits(node, gpu, slice))
    );
  }

  point(event) {
    if (!this.at) return;
    const bounds = this.box.getBoundingClientRect();
    const x = event.clientX - bounds.left - EDGE,
      y = event.clientY - bounds.top + this.box.scrollTop - EDGE;
    const row = this.at.rows.find((one) => y < one.end),
      k = Math.floor(x / (this.at.size + this.at.gap));
    if (!row || k < 0 || k >= row.count || x - k * (this.at.size + this.at.gap) > this.at.size) return;
    const i = row.first + k,
      j = Math.floor((y - row.top - this.at.label) / this.at.step);
    if (this.model.order[i].gpus[j]) this.select(i, j);
  }

  key(event) {
    const nodes = this.model.order;
    if (!nodes.length || !this.at || event.ctrlKey || event.metaKey || event.altKey) return;
    const [i, j] = this.current || [0, -1];
    const last = nodes.length - 1;
    // The node in the same column, `by` rows further; the row's last node where it is shorter.
    const beside = (by) => {
      const { rows, rowOf } = this.at,
        row = rows[rowOf[i]],
        to = rows[rowOf[i] + by];
      return to ? Math.min(to.first + i - row.first, to.first + to.count - 1) : -1;
    };
    const below = beside(1),
      above = beside(-1);
    const moves = {
      ArrowDown: () => (j + 1 < nodes[i].gpus.length ? [i, j + 1] : below >= 0 ? [below, 0] : null),
      ArrowUp: () => (j > 0 ? [i, j - 1] : above >= 0 ? [above, nodes[above].gpus.length - 1] : null),
      ArrowRight: () => (i < last ? [i + 1, Math.min(Math.max(j, 0), nodes[i + 1].gpus.length - 1)] : null),
      ArrowLeft: () => (i > 0 ? [i - 1, Math.min(Math.max(j, 0), nodes[i - 1].gpus.length - 1)] : null),
      PageDown: () => [below >= 0 ? below : last, 0],
      PageUp: () => [above >= 0 ? above : 0, 0],
      Home: () => [0, 0],
      End: () => [last, nodes[last].gpus.length - 1],
      Enter: () => {
        $("map-pods").querySelector("a")?.focus();
        return null;
      },
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const to = moves[event.key]();
    if (to) {
      this.select(...to);
      this.show(to[0]);
    }
  }

  show(i) {
    const row = this.at.rows[this.at.rowOf[i]];
    if (row.y < this.box.scrollTop) this.box.scrollTop = row.y;
    else if (row.end > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = row.end - this.box.clientHeight;
  }

  select(i, j) {
    if (this.current && this.current[0] === i && this.current[1] === j) return;
    this.current = [i, j];
    this.describe();
    this.draw();
  }

  describe() {
    if (!this.current) return;
    const node = this.model.order[this.current[0]],
      gpu = node?.gpus[this.current[1]];
    if (!gpu) {
      this.current = null;
      return;
    }
    const text = sentence(node, gpu);
    if ($("map-current").textContent !== text) $("map-current").textContent = text;
    $("map-pods").replaceChildren(
      ...gpu.slices.map((slice) =>
        h(
          "li",
          {},
          h("span", { class: `swatch k${this.model.colours.get(slice.namespace) ?? 8}`, "aria-hidden": "true" }),
          podLink(slice.namespace, slice.pod),
          amounts(slice),
        ),
      ),
    );
  }
}

export function amounts(slice) {
  const compute = slice.milli ? `, ${slice.milli / 10} % compute` : "";
  return ` ${gib(slice.mib)}${compute}${slice.phase === "starting" ? ", starting" : ""}`;
}

export function sentence(node, gpu) {
  const taken = gpu.slices.reduce((sum, slice) => sum + slice.mib, 0),
    milli = gpu.slices.reduce((sum, slice) => sum + slice.milli, 0);
  const state = gpu.state === "healthy" ? "" : `, ${gpu.state}${gpu.reason ? `: ${gpu.reason}` : ""}`;
  const count = gpu.slices.length === 1 ? "1 slice" : `${gpu.slices.length} slices`;
  const name = `${node.name}, GPU ${gpu.index}, ${gpu.model}${gpu.mig ? " in MIG mode" : ""}${state}`;
  return `${name}: ${gib(taken)} of ${gib(gpu.mib)} memory and ${milli / 10} % compute in ${count}.`;
}

function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`…${text.slice(-end)}`).width > width) end--;
  return `…${text.slice(-end)}`;
}
