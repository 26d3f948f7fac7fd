// The frame of the page: which page the address names, live updates, and keys.
import { curves, times } from "./curves.js";
import { address, el, here, note } from "./dom.js";
import { episode } from "./episode.js";
import { episodes, files } from "./episodes.js";
import { chosen, poll, runs } from "./live.js";
import { settings } from "./settings.js";

const PAGES = { curves, time: times, files, config: settings, episodes, episode };
const TAB = { episodes: "files", episode: "files" };
const SECONDS = 2;
const main = document.getElementById("main"), nav = document.getElementById("tabs"), chips = document.getElementById("runs");
const keys = document.getElementById("keys");
let page = {}, visit = 0;

async function show() {
  const { place, parameters } = here(), number = ++visit;
  main.setAttribute("aria-busy", "true");
  frame();  // at once: tabs and chips lead on from the new address while its page loads
  const made = await Promise.resolve().then(() => {
    if (!Object.hasOwn(PAGES, place)) throw new Error(`There is no page ${place}.`);
    if (parameters.has("run") && !chosen(parameters).length) throw new Error(`There is no run ${parameters.getAll("run").join(", ")} here.`);
    return PAGES[place]();
  }).catch((error) => ({ title: "error", nodes: [note(error.message, "bad")], failed: true }));
  if (number !== visit) return;  // the reader is elsewhere already
  main.removeAttribute("aria-busy");
  page = made;
  main.replaceChildren(...page.nodes);
  document.title = `${page.title} – ${runs.length === 1 ? runs[0].name : `${runs.length} runs`} – agentloop view`;
}

// Draw what is above all pages: tabs, and a chip for each run with its state.
function frame() {
  const { place, parameters } = here(), shown = chosen(parameters), names = shown.map((run) => run.name);
  const selected = shown.length < runs.length ? { run: names } : {};
  for (const tab of nav.children) {
    tab.href = address(tab.dataset.place, TAB[place] ? {} : selected);
    if (tab.dataset.place === (TAB[place] ?? place)) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  const focused = [...chips.children].indexOf(document.activeElement);
  chips.replaceChildren(...runs.map((run) => {
    const progress = run.last_step === null ? "" : `step ${run.last_step}${run.steps ? ` of ${run.steps}` : ""}`;
    const text = [el("i", { class: "swatch", style: `background:${run.colour}` }), el("b", {}, run.name), el("span", { class: `state ${run.state}` }, [run.state, progress].filter(Boolean).join(", "))];
    if (runs.length === 1 || TAB[place]) return el("span", { class: "chip", title: run.path }, text);
    const is = names.includes(run.name);
    return el("button", {
      class: "chip", title: `${run.path}: click to ${is ? "hide" : "show"}`, "aria-pressed": String(is), onclick: () => toggle(run),
    }, text);
  }));
  chips.children[focused]?.focus();
}

// Hide a run that the address shows, or show one that it hides.
function toggle(run) {
  const { place, parameters } = here(), shown = chosen(parameters);
  const next = runs.filter((each) => shown.includes(each) !== (each === run)).map((each) => each.name);
  location.hash = address(place, { search: parameters.get("search"), run: next.length === runs.length ? [] : next });
}

function move(by) {
  const rows = [...main.querySelectorAll("a.row")], at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}

const KEYS = {
  "/": () => main.querySelector("input[type=search]")?.focus(),
  j: () => move(1), k: () => move(-1),
  n: () => main.querySelector("[data-key=n][href]")?.click(), p: () => main.querySelector("[data-key=p][href]")?.click(),
  u: () => { const links = main.querySelectorAll(".path a"); (links[links.length - 1] ?? nav.querySelector("[aria-current]")).click(); },
  "?": () => keys.showModal(),
  ...Object.fromEntries([...nav.children].map((tab, index) => [String(index + 1), () => tab.click()])),
};

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select") || keys.open) return;
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});
document.getElementById("help").addEventListener("click", () => keys.showModal());

const offline = document.getElementById("offline");
let isKnown = false;  // whether the runs are
async function live() {
  try {
    const changed = (!isKnown || !document.hidden) && await poll(), isBack = !offline.hidden;
    offline.hidden = true;
    if (!isKnown) addEventListener("hashchange", show);
    if (!isKnown || (isBack && page.failed)) {
      isKnown = true;
      show();
    } else if (changed) {
      frame();
      await Promise.resolve().then(() => page.update?.()).catch(show);  // a resumed run may have removed what it shows
    }
  } catch {
    offline.hidden = false;
  }
  setTimeout(live, SECONDS * 1000);
}

live();
