// Elements from data. Text is always set as text, so nothing that a pod is named can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// The heading of a column of numbers, which are set flush right.
export const numeric = (title) => ({ title, class: "number" });

// A table. A heading is text, an element or `numeric`; a cell is text, an element or a list of both; `totals` are rows.
export function table(headings, rows, totals = []) {
  const columns = headings.map((heading) => (heading.class ? heading : { title: heading }));
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h("tr", {}, ...columns.map((column) => h("th", { scope: "col", class: column.class }, column.title))),
    ),
    h(
      "tbody",
      {},
      ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: columns[i].class }, cell)))),
    ),
    totals.length ? h("tfoot", {}, ...totals) : null,
  );
}

export const $ = (id) => document.getElementById(id);

export function gib(mib) {
  const value = mib / 1024;
  return `${value >= 100 ? Math.round(value) : Number(value.toFixed(value < 10 ? 1 : 0))} GiB`;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "0 %";
}

export function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} d`;
}

export function number(value, digits = 0) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function podLink(namespace, name, text) {
  return h(
    "a",
    { href: `#pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}` },
    text || `${namespace}/${name}`,
  );
}

export async function ask(path, options) {
  const response = await fetch(path, {
    headers: { Accept: "application/json" },
    credentials: "same-origin",
    ...options,
  });
  const body = await response.json();
  if (!response.ok) {
    const error = new Error(body.error || response.statusText);
    error.status = response.status;
    throw error;
  }
  return body;
}
