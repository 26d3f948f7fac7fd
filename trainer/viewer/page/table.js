// A table whose rows are links and whose columns can be sorted, with mouse and keyboard.
import { el } from "./dom.js";

// Return a table and a function that gives it new rows. A column has a title, `show(row)` for its cell and `value(row)`
// to sort by; `href(row)` is where a row leads.
export function table(columns, href) {
  let rows = [], by = null, down = false;
  const body = el("tbody");
  const order = (key) => columns[key].value ?? ((row) => row[key]);
  const cell = (row, key, index) => {
    const { show, kind } = columns[key];
    const content = show ? show(row) : String(row[key] ?? "–");
    return el("td", { class: kind }, index ? content : el("a", { class: "row", href: href(row) }, content));
  };
  const draw = () => {
    const at = document.activeElement?.closest?.("tbody") === body ? document.activeElement.getAttribute("href") : null;
    const sorted = by === null ? rows : [...rows].sort((a, b) => compare(order(by)(a), order(by)(b)) * (down ? -1 : 1));
    body.replaceChildren(...sorted.map((row) => el("tr", {
      onclick: (event) => { if (!event.target.closest("a")) location.hash = href(row); },
    }, Object.keys(columns).filter((key) => !columns[key].hidden?.()).map((key, index) => cell(row, key, index)))));
    if (at !== null) body.querySelector(`a[href="${CSS.escape(at)}"]`)?.focus();
    head.replaceChildren(el("tr", {}, Object.keys(columns).filter((key) => !columns[key].hidden?.()).map((key) => el("th", {
      class: columns[key].kind, "aria-sort": by === key ? (down ? "descending" : "ascending") : "none",
    }, el("button", { onclick: () => { down = by === key ? !down : false; by = key; draw(); head.querySelector(`[data-key="${key}"]`).focus(); }, "data-key": key }, columns[key].title ?? key)))));
  };
  const head = el("thead");
  const set = (fresh) => { rows = fresh; draw(); };
  return { node: el("div", { class: "scroll" }, el("table", {}, head, body)), set };
}

// Missing values come last.
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a > b ? 1 : -1;
}
