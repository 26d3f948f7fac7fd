// The tables of trajectory files and of the episodes in one of them, with filters that the address remembers.
import { address, el, get, here, note, remember, short } from "./dom.js";
import { chosen, isOne, runs } from "./live.js";
import { table } from "./table.js";

const REWARD = { train: "reward/mean", eval: "eval/reward/mean" };

export function files() {
  const rowsOf = (run) => {
    const byStep = new Map(run.metrics.map((line) => [line.step, line]));
    return run.files.map((file) => ({ ...file, run: run.name, colour: run.colour, reward: byStep.get(file.step)?.[REWARD[file.kind]] }));
  };
  const { node, set } = table({
    name: { kind: "text", title: "file" },
    run: { kind: "text", hidden: isOne, show: (row) => [el("i", { class: "swatch", style: `background:${row.colour}` }), row.run] },
    kind: { kind: "text" },
    step: {},
    reward: { title: "mean reward", show: (row) => short(row.reward) },
    bytes: { title: "KiB", show: (row) => Math.ceil(row.bytes / 1024).toLocaleString("en") },
  }, (row) => address("episodes", { run: row.run, file: row.name }));
  const body = el("div");
  const draw = () => {
    const rows = chosen(here().parameters).flatMap(rowsOf).sort((a, b) => b.step - a.step);  // newest first
    set(rows);
    body.replaceChildren(rows.length ? node : note("There are no trajectory files yet."));
  };
  draw();
  return { title: "episodes", nodes: [body], update: draw };
}

// Return the episodes that the filters of the address let through.
export function matching(rows, parameters) {
  const low = parameters.get("min"), high = parameters.get("max"), ended = parameters.get("ended");
  const failure = parameters.get("failure"), search = (parameters.get("search") ?? "").toLowerCase();
  return rows.filter((row) => (!low || (row.reward !== null && row.reward >= Number(low)))
    && (!high || (row.reward !== null && row.reward <= Number(high)))
    && (!ended || row.stop === ended)
    && (!failure || (failure === "any" ? isFailed(row) : failure === "none" ? !isFailed(row) : failure in row.failures))
    && `${row.id} ${row.task}`.toLowerCase().includes(search));
}

const isFailed = (row) => Object.keys(row.failures).length > 0 || row.error !== null;

export const colourOf = (reward) => (reward === null ? "dim" : reward > 0 ? "good" : "bad");

// The parameters of the address that filter episodes.
export const filters = (parameters) => Object.fromEntries(["min", "max", "failure", "ended", "search"].map((key) => [key, parameters.get(key)]));

export async function episodes() {
  const { parameters } = here();
  const run = parameters.get("run"), file = parameters.get("file");
  let rows = await get("episodes", { run, file });
  const field = (key, attributes) => el("input", {
    ...attributes, name: key, value: parameters.get(key) ?? "", oninput: (event) => { remember({ [key]: event.target.value }); draw(); },
  });
  const select = (key, options) => el("select", {
    name: key, onchange: (event) => { remember({ [key]: event.target.value }); draw(); },
  }, options.map(([value, text]) => el("option", { value, selected: (parameters.get(key) ?? "") === value }, text)));
  const names = (found) => [...new Set(found)].sort().map((name) => [name, name]);
  const count = el("span", { class: "dim", role: "status" });
  const { node, set } = table({
    id: { kind: "text", title: "episode" },
    task: { kind: "text task", show: (row) => el("span", { title: row.task }, row.task || "–") },
    reward: { show: (row) => el("b", { class: colourOf(row.reward) }, short(row.reward)) },
    stop: { kind: "text", title: "ended by" },
    turns: {}, calls: {}, tokens: {}, sampled: {},
    images: { hidden: () => !rows.some((row) => row.images) },
    seconds: { show: (row) => short(row.seconds) },
    versions: { title: "policy", value: (row) => row.versions?.[0], show: (row) => (row.versions ? [...new Set(row.versions)].join(" to ") : "–") },
    failures: {
      kind: "text", value: (row) => Object.keys(row.failures).join(" "),
      show: (row) => el("span", { class: "bad", title: row.error ?? "" }, Object.entries(row.failures).map(([kind, number]) => `${kind} ${number}`).join(", ")),
    },
  }, (row) => address("episode", { run, file, episode: row.index, ...filters(here().parameters) }));
  const draw = () => {
    const found = matching(rows, here().parameters), judged = found.filter((row) => row.reward !== null);
    const mean = judged.reduce((sum, row) => sum + row.reward, 0) / judged.length;
    count.textContent = `${found.length} of ${rows.length} episodes${judged.length ? `, mean reward ${short(mean)}` : ""}`;
    set(found);
  };
  draw();
  const update = async () => { rows = await get("episodes", { run, file }); draw(); };
  const label = (text, ...inputs) => el("label", {}, text, ...inputs);
  return {
    title: file,
    nodes: [
      path(run, file),
      el("div", { class: "tools" },
        field("search", { type: "search", placeholder: "search tasks", "aria-label": "search tasks", title: "in ids, and in the first 300 characters of tasks" }),
        label("reward from ", field("min", { type: "number", step: "any", "aria-label": "lowest reward" }),
          " to ", field("max", { type: "number", step: "any", "aria-label": "highest reward" })),
        label("failures ", select("failure", [["", "all episodes"], ["any", "only failed"], ["none", "only without"], ...names(rows.flatMap((row) => Object.keys(row.failures)))])),
        label("ended by ", select("ended", [["", "anything"], ...names(rows.map((row) => row.stop).filter(Boolean))])),
        count),
      node,
    ],
    update,
  };
}

// Where the reader is: run, file and episode.
export function path(run, file, episode) {
  const colour = runs.find((each) => each.name === run)?.colour;
  return el("h2", { class: "path" }, isOne() ? null : [el("i", { class: "swatch", style: `background:${colour}` }), el("a", { href: address("files", { run }) }, run), " / "],
    episode === undefined ? file : [el("a", { href: address("episodes", { run, file, ...filters(here().parameters) }) }, file), " / ", episode]);
}
