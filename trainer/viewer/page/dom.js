// Elements, addresses and numbers. Text of a model is only ever inserted as text.

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {  // `append(...children)` fails for about 100,000
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export async function get(path, parameters = {}, options = {}) {
  const response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, options)
    .catch(() => { throw new Error("agentloop view does not answer. Is it still running?"); });
  if (response.ok) return response.json();
  const { detail } = await response.json().catch(() => ({}));
  throw new Error(typeof detail === "string" ? detail : `agentloop view answered with status ${response.status}. Its terminal shows why.`);
}

// Return the address of a place on the page; empty parameters are left out.
export function address(place, parameters = {}) {
  const pairs = Object.entries(parameters).flatMap(([key, value]) => [value].flat().map((each) => [key, each]));
  const query = new URLSearchParams(pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${place}${query.size ? `?${query}` : ""}`;
}

// Return the place and the parameters of the page's address.
export function here() {
  const [place, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { place: place || "curves", parameters: new URLSearchParams(query) };
}

// Change parameters of the page's address without a new entry in the history.
export function remember(changes) {
  const { place, parameters } = here();
  const kept = {};
  for (const key of parameters.keys()) kept[key] = parameters.getAll(key);
  history.replaceState(null, "", address(place, { ...kept, ...changes }));
}

export function short(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(2) : value.toFixed(3);
}

export const note = (text, kind = "dim") => el("p", { class: kind }, text);
