// The page: curves, times, trajectories, config. Data comes from /api; text of the model is only inserted as text.
import { lineChart, short, stackedBars } from "./charts.js";

const main = document.getElementById("main"), state = document.getElementById("state");
const FIRST = ["reward/mean", "eval/reward/mean", "rollout/tool_call_rate", "rollout/sampled_tokens", "learner/entropy", "learner/logprob_diff", "learner/grad_norm", "time/step"];
let run = {}, metrics = [], filter = "";

function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

async function get(path) {
  const response = await fetch(path);
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail ?? response.statusText);
  return body;
}

function chart(name) {
  const steps = metrics.filter((line) => line[name] !== undefined).map((line) => [line.step, line[name]]);
  const sparse = name.startsWith("eval/");
  const last = steps.length ? short(steps.at(-1)[1]) : "–";
  const value = el("span", {}, last);
  const image = lineChart(sparse ? [] : steps, sparse ? steps : [], (point) => { value.textContent = point ? `step ${point[0]}: ${short(point[1])}` : last; });
  return el("div", { class: "chart" }, el("h3", {}, name, value), image);
}

function curves() {
  const names = [...new Set(metrics.flatMap(Object.keys))].filter((name) => name !== "step").sort();
  if (!names.length) return [el("p", { class: "dim" }, run.config && Object.keys(run.config).length ? "No step has ended yet." : "A rollout has no curves, only trajectories.")];
  const search = el("input", { type: "search", placeholder: `search ${names.length} metrics`, value: filter, oninput: (event) => { filter = event.target.value; body.replaceChildren(...groups()); } });
  const groups = () => {
    const wanted = names.filter((name) => name.toLowerCase().includes(filter.toLowerCase()));
    const top = filter ? [] : FIRST.filter((name) => wanted.includes(name));
    const rest = Map.groupBy(wanted, (name) => name.split("/")[0]);
    return [top.length ? el("div", { class: "charts" }, ...top.map(chart)) : null,
      ...[...rest].flatMap(([group, members]) => [el("h2", {}, group), el("div", { class: "charts" }, ...members.map(chart))])].filter(Boolean);
  };
  const body = el("div", {}, ...groups());
  return [el("p", {}, search), body];
}

function times() {
  const stages = ["rollout", "train", "publish", "eval", "save", "load"].map((name) => `time/${name}`).filter((name) => metrics.some((line) => line[name]));
  if (!stages.length) return [el("p", { class: "dim" }, "No step has ended yet.")];
  const series = Object.fromEntries(stages.map((name) => [name.slice(5), metrics.map((line) => line[name] ?? 0)]));
  const { image, colours } = stackedBars(metrics.map((line) => line.step), series);
  const total = Object.values(series).flat().reduce((sum, value) => sum + value, 0);
  const share = Object.entries(series).map(([name, values]) => {
    const sum = values.reduce((a, b) => a + b, 0);
    return el("span", {}, el("b", { style: `background:${colours[name]};color:#fff` }, name), ` ${short(sum)} s, ${((100 * sum) / total).toFixed(0)} %`);
  });
  return [el("h2", {}, "Seconds of each stage, by step"), el("div", { class: "legend" }, ...share), image];
}

// Return a table of row objects; a click on a column name sorts by that column.
function table(columns, rows, onOpen) {
  let by = null, down = false;
  const body = el("tbody");
  const draw = () => {
    const value = (row) => (by ? columns[by].value?.(row) ?? row[by] : 0);
    const sorted = by ? [...rows].sort((a, b) => (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0) * (down ? -1 : 1)) : rows;
    body.replaceChildren(...sorted.map((row) => el("tr", { class: "link", onclick: () => onOpen(row) },
      ...Object.entries(columns).map(([key, column]) => el("td", { class: column.class ?? "" }, column.show ? column.show(row) : String(row[key] ?? "–"))))));
  };
  draw();
  const head = Object.entries(columns).map(([key, column]) => el("th", { class: column.class ?? "", onclick: () => { down = by === key ? !down : false; by = key; draw(); } }, column.title ?? key));
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), body);
}

async function files() {
  const found = await get("/api/files");
  if (!found.length) return [el("p", { class: "dim" }, "There are no trajectory files yet.")];
  const reward = new Map(metrics.map((line) => [line.step, line]));
  const mean = (row) => reward.get(row.step)?.[row.kind === "eval" ? "eval/reward/mean" : "reward/mean"];
  return [table({
    name: { class: "text" }, kind: { class: "text" }, step: {},
    reward: { title: "mean reward", value: mean, show: (row) => short(mean(row)) }, mib: { title: "MiB" },
  }, found, (row) => { location.hash = `#/files/${row.name}`; })];
}

async function file(name) {
  const rows = await get(`/api/files/${encodeURIComponent(name)}`);
  const failed = (row) => Object.entries(row.failures).map(([kind, count]) => `${kind} ${count}`).join(", ");
  return [el("h2", {}, `${name}: ${rows.length} trajectories`), table({
    id: { class: "text" },
    reward: { show: (row) => el("span", { class: row.reward === null ? "dim" : row.reward > 0 ? "good" : "bad" }, short(row.reward)) },
    stop: { class: "text", title: "ended by" }, turns: {}, calls: {}, tokens: {}, sampled: { title: "sampled" }, images: {},
    seconds: { show: (row) => short(row.seconds) },
    versions: { title: "policy", value: (row) => row.versions?.[0], show: (row) => (row.versions ? [...new Set(row.versions)].join(" to ") : "–") },
    failures: { class: "text", show: (row) => el("span", { class: "bad" }, failed(row)) },
  }, rows, (row) => { location.hash = `#/files/${name}/${row.index}`; })];
}

// A darker colour means a less probable token.
const heat = (logprob) => `rgba(214, 69, 65, ${(0.85 * (1 - Math.exp(logprob / 2))).toFixed(3)})`;

function stream(data, hot) {
  const image = (number) => el("img", { src: `data:image/png;base64,${data.images[number]}`, alt: `image ${number}` });
  const parts = data.segments.map((segment) => {
    const pieces = segment.pieces?.map((text, index) => el("span", {
      title: `${segment.ids[index].join(" ")}   logprob ${short(segment.logprobs[index])}   p ${short(Math.exp(segment.logprobs[index]))}   policy ${segment.versions[index]}`,
      ...(hot ? { style: `background:${heat(segment.logprobs[index])}` } : {}),
    }, text));
    return el("span", { class: segment.kind }, ...(pieces ?? [segment.text]), ...(segment.images ?? []).map(image));
  });
  return el("div", { class: `stream${hot ? " heat" : ""}` }, ...parts);
}

// What the learner did with the sampled tokens of a file.
const LEARNED = { train: "trained on", eval: "evaluation, not trained on", rollout: "not trained on" };

async function trajectory(name, index) {
  const data = await get(`/api/files/${encodeURIComponent(name)}/${index}`), at = Number(index);
  const facts = { reward: short(data.reward), "ended by": data.stop_reason, "turn rewards": (data.turn_rewards ?? []).map(short).join(" "), seconds: short(data.metrics.seconds), generating: short(data.metrics.seconds_generating), "in tools": short(data.metrics.seconds_in_tools) };
  const body = el("div");
  let hot = false;
  const draw = () => body.replaceChildren(...[data, ...data.branches].flatMap((each, number) => [number ? el("h2", {}, `branch ${number}`) : "", stream(each, hot)]));
  draw();
  const toggle = el("input", { type: "checkbox", id: "heat", onchange: (event) => { hot = event.target.checked; draw(); } });
  return [
    el("h2", {}, el("a", { href: `#/files/${name}` }, name), ` / ${data.trajectory_id}  `, at > 0 ? el("a", { href: `#/files/${name}/${at - 1}` }, "‹ previous ") : null, el("a", { href: `#/files/${name}/${at + 1}` }, " next ›")),
    el("div", { class: "facts" }, ...Object.entries(facts).filter(([, value]) => value && value !== "–").map(([key, value]) => el("span", {}, el("span", { class: "dim" }, `${key} `), value))),
    data.error ? el("p", { class: "bad" }, data.error) : null,
    el("div", { class: "legend" }, el("b", { class: "sampled" }, `sampled (${LEARNED[data.file_kind]})`), el("b", { class: "observation" }, "observed"), el("span", { class: "dim" }, "prompt and template"), el("label", { for: "heat" }, toggle, " colour by probability")),
    body,
    el("details", {}, el("summary", {}, "task"), el("pre", {}, JSON.stringify(data.task, null, 1))),
    el("details", {}, el("summary", {}, "messages"), el("pre", {}, JSON.stringify(data.messages, null, 1))),
    el("details", {}, el("summary", {}, "metrics"), el("pre", {}, JSON.stringify({ ...data.metrics, failures: data.failures }, null, 1))),
  ];
}

const config = () => [el("h2", {}, run.path), el("pre", {}, JSON.stringify(run.config, null, 2))];

async function show() {
  const [place, name, index] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  for (const link of document.querySelectorAll("nav a")) link.classList.toggle("here", link.getAttribute("href") === `#/${place ?? ""}`);
  try {
    const view = place === "files" ? (index !== undefined ? trajectory(name, index) : name ? file(name) : files()) : place === "time" ? times() : place === "config" ? config() : curves();
    main.replaceChildren(...(await view).filter(Boolean));
  } catch (error) {
    main.replaceChildren(el("p", { class: "bad" }, error.message));
  }
}

async function refresh() {
  run = await get("/api/run");
  document.getElementById("name").textContent = run.name;
  document.title = `${run.name} – agentloop view`;
  const fresh = await get(`/api/metrics?since=${metrics.length}`);
  metrics.push(...fresh);
  const last = metrics.at(-1)?.step;
  state.textContent = last === undefined ? "" : `step ${last}${run.config.run?.steps ? ` of ${run.config.run.steps}` : ""}${run.over ? ", finished" : ""}`;
  return fresh.length > 0;
}

addEventListener("hashchange", show);
await refresh();
await show();
// The run may still go on: show new steps on the pages where this does not disturb reading.
setInterval(async () => {
  if (run.over || document.hidden) return;
  const changed = await refresh().catch(() => { state.textContent = "agentloop view has ended"; });
  if (changed && /^#?\/?(time)?$/.test(location.hash) && document.activeElement?.type !== "search") show();
}, 4000);
