// What is known of the fleet: the server's snapshot, and the changes since.

export const COLOURS = 8;

export class Model {
  constructor() {
    this.colours = new Map();
    this.clear();
  }

  clear() {
    this.version = 0;
    this.nodes = new Map();
    this.order = [];
    this.decisions = [];
    this.queue = [];
    this.pending = 0;
    this.overview = {};
  }

  apply({ changes, overview }) {
    if (changes.reset) this.clear();
    let reordered = false;
    for (const node of changes.nodes || []) {
      reordered ||= !this.nodes.has(node.name);
      this.nodes.set(node.name, read(node));
    }
    for (const name of changes.gone || []) reordered = this.nodes.delete(name) || reordered;
    if (reordered) this.order = [...this.nodes.values()].sort(byModel);
    else if ((changes.nodes || []).length) this.order = this.order.map((node) => this.nodes.get(node.name));
    const known = this.decisions.length ? this.decisions[0].number : 0;
    this.decisions = [...(changes.decisions || []).filter((d) => d.number > known), ...this.decisions].slice(0, 200);
    if (changes.queue) this.queue = changes.queue;
    this.pending = changes.pending || 0;
    this.version = changes.version;
    this.overview = overview;
    if ((changes.nodes || []).length) this.colour();
    return {
      reordered,
      nodes: (changes.nodes || []).length + (changes.gone || []).length > 0,
      decisions: (changes.decisions || []).length > 0,
      queue: Boolean(changes.queue),
    };
  }

  // Namespaces keep their colour for as long as the page is open; the largest get one first, the ninth and later share
  // the last.
  colour() {
    const sizes = new Map();
    for (const node of this.order)
      for (const slice of node.slices) sizes.set(slice.namespace, (sizes.get(slice.namespace) || 0) + slice.mib);
    const fresh = [...sizes.keys()]
      .filter((name) => !this.colours.has(name))
      .sort((a, b) => sizes.get(b) - sizes.get(a) || a.localeCompare(b));
    for (const name of fresh) this.colours.set(name, Math.min(this.colours.size, COLOURS));
    this.sizes = sizes;
  }

  models() {
    return [...new Set(this.order.flatMap((node) => node.gpus.map((gpu) => gpu.model)))].sort();
  }
}

// Nodes of one GPU model stand together, those with the most GPUs first.
const NAMES = new Intl.Collator("en", { numeric: true });
function byModel(a, b) {
  return (
    NAMES.compare(a.gpus[0]?.model ?? "", b.gpus[0]?.model ?? "") ||
    b.gpus.length - a.gpus.length ||
    NAMES.compare(a.name, b.name)
  );
}

function read(node) {
  const gpus = node.gpus.map(([uuid, model, mib, state, reason, mig], index) => ({
    uuid,
    model,
    mib,
    state,
    reason,
    mig,
    index,
    slices: [],
  }));
  const byUuid = new Map(gpus.map((gpu) => [gpu.uuid, gpu]));
  const slices = node.slices.map(([uuid, mib, milli, phase, namespace, pod, container, strategy]) => ({
    uuid,
    mib,
    milli,
    phase,
    namespace,
    pod,
    container,
    strategy,
  }));
  slices.sort((a, b) => a.namespace.localeCompare(b.namespace) || a.pod.localeCompare(b.pod));
  for (const slice of slices) byUuid.get(slice.uuid)?.slices.push(slice);
  return { name: node.name, gpus, slices };
}
