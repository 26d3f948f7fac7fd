// The configurations of the runs, key by key.
import { el, get, here, note } from "./dom.js";
import { chosen } from "./live.js";

function flat(value, prefix = "") {
  return Object.entries(value).flatMap(([key, item]) => item !== null && typeof item === "object" && !Array.isArray(item) && Object.keys(item).length
    ? flat(item, `${prefix}${key}.`) : [[prefix + key, JSON.stringify(item)]]);
}

export async function settings() {
  const shown = chosen(here().parameters).filter((run) => run.state !== "rollout");
  const configs = await Promise.all(shown.map(async (run) => Object.fromEntries(flat(await get("config", { run: run.name })))));
  const names = [...new Set(configs.flatMap(Object.keys))];
  const differs = (name) => new Set(configs.map((config) => config[name])).size > 1;
  const search = el("input", { type: "search", placeholder: `search ${names.length} keys`, "aria-label": "search keys", oninput: () => draw() });
  const only = el("input", { type: "checkbox", onchange: () => draw() });
  only.checked = configs.length > 1;
  const body = el("tbody");
  const draw = () => body.replaceChildren(...names.filter((name) => name.includes(search.value) && (!only.checked || differs(name)))
    .map((name) => el("tr", { class: configs.length > 1 && differs(name) ? "differs" : null },
      el("th", { scope: "row", class: "text" }, name), configs.map((config) => el("td", { class: "text value" }, config[name] ?? "–")))));
  draw();
  if (!shown.length) return { title: "config", nodes: [note("A rollout has no configuration.")] };
  return {
    title: "config",
    nodes: [
      el("div", { class: "tools" }, search, configs.length > 1 ? el("label", {}, only, " only differences") : null),
      el("div", { class: "scroll" }, el("table", { class: "settings" }, el("thead", {}, el("tr", {}, el("th", { class: "text" }, "key"), shown.map((run) => el("th", { class: "text" }, run.path)))), body)),
    ],
  };
}
