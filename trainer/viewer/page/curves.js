// The pages that draw metrics: curves of all runs over each other, and the seconds of each stage.
import { lineChart, stackedBars } from "./charts.js";
import { el, here, note, remember, short } from "./dom.js";
import { chosen, colour, isOne, runs } from "./live.js";

const FIRST = [
  "reward/mean", "eval/reward/mean", "rollout/tool_call_rate", "rollout/sampled_tokens", "learner/entropy",
  "learner/logprob_diff", "learner/grad_norm", "time/step",
];
const STAGES = ["rollout", "train", "publish", "eval", "save", "load"];
const ink = (stage) => colour(STAGES.indexOf(stage));  // the same in all runs

function chart(name, shown) {
  const series = shown.map((run) => ({
    colour: run.colour,
    points: run.metrics.filter((line) => Number.isFinite(line[name])).map((line) => [line.step, line[name]]),
  })).filter(({ points }) => points.length);
  if (!series.length) return null;
  const values = el("span", { class: "values" });
  const say = (step) => values.replaceChildren(step === null ? "" : `step ${step} `, ...series.map(({ colour: ink, points }) => {
    const value = step === null ? points.at(-1)[1] : points.find((point) => point[0] === step)?.[1];
    return el("b", isOne() ? {} : { style: `color:${ink}` }, short(value));
  }));
  say(null);
  const label = `${name}: ${series.map(({ points }) => `${short(points.at(-1)[1])} at step ${points.at(-1)[0]}`).join("; ")}`;
  const image = lineChart(series, { dotted: name.startsWith("eval/"), label, onHover: say });
  return el("div", { class: "card chart", "data-metric": name }, el("h3", {}, el("span", { title: name }, name), values), image);
}

export function curves() {
  const search = el("input", {
    type: "search", "aria-label": "search metrics", value: here().parameters.get("search") ?? "",
    oninput: () => { remember({ search: search.value }); draw(); },
  });
  const body = el("div");
  const draw = () => {
    const shown = chosen(here().parameters);
    const names = [...new Set(shown.flatMap((run) => run.metrics.flatMap(Object.keys)))].filter((name) => name !== "step").sort();
    search.placeholder = `search ${names.length} metrics`;
    search.hidden = !names.length;
    const wanted = names.filter((name) => name.toLowerCase().includes(search.value.toLowerCase()));
    const cards = (members) => el("div", { class: "charts" }, members.map((name) => chart(name, shown)));
    const top = search.value ? [] : FIRST.filter((name) => wanted.includes(name));
    const groups = [...Map.groupBy(wanted, (name) => name.split("/")[0])];
    const empty = runs.every((run) => run.state === "rollout") ? "A rollout has no curves, only episodes." : "No step has ended yet.";
    body.replaceChildren(...names.length
      ? [cards(top), ...groups.flatMap(([group, members]) => [el("h2", {}, group), cards(members)])]
      : [note(empty)]);
  };
  draw();
  return { title: "curves", nodes: [el("div", { class: "tools" }, search), body], update: draw };
}

function seconds(run) {
  const stages = STAGES.filter((stage) => run.metrics.some((line) => line[`time/${stage}`]));
  if (!stages.length) return note("No step has ended yet.");
  const parts = Object.fromEntries(stages.map((stage) => [stage, run.metrics.map((line) => line[`time/${stage}`] ?? 0)]));
  const sums = stages.map((stage) => parts[stage].reduce((a, b) => a + b, 0));
  const total = sums.reduce((a, b) => a + b, 0);
  const shares = stages.map((stage, index) => el("span", {},
    el("i", { class: "swatch", style: `background:${ink(stage)}` }),
    `${stage} `, el("b", {}, `${short(sums[index])} s`), el("span", { class: "dim" }, ` ${((100 * sums[index]) / total).toFixed(0)} %`)));
  return el("div", { class: "card" }, el("div", { class: "legend" }, shares), stackedBars(run.metrics.map((line) => line.step), parts, ink));
}

export function times() {
  const body = el("div");
  const draw = () => body.replaceChildren(...chosen(here().parameters).filter((run) => run.state !== "rollout").flatMap((run) => [
    el("h2", {}, isOne() ? "Seconds of each stage, by step" : run.name), seconds(run)]));
  draw();
  if (!body.children.length) body.append(note("A rollout has no steps, only episodes."));
  return { title: "time", nodes: [body], update: draw };
}
