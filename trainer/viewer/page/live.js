// The runs on the page. `poll` fetches what is new; nothing is loaded twice.
import { get } from "./dom.js";

const COLOURS = ["#3b82d6", "#dd7a2e", "#3f9f63", "#c94f63", "#8b68d0", "#a0764c", "#cc66ab", "#5d8296", "#a59a2c"];

// Further runs get hues at the golden angle, which are different for any number of runs.
export const colour = (index) => COLOURS[index] ?? `hsl(${Math.round(index * 137.508) % 360} 55% 52%)`;

// Each run has its name, state, files and metrics, which grow.
export const runs = [];

const SILENT = 30_000;  // milliseconds; a server behind a broken connection never answers

// Return whether anything changed.
export async function poll() {
  const states = await get("runs", {}, { signal: AbortSignal.timeout(SILENT) });
  const changes = await Promise.all(states.map(async (state, index) => {
    const run = (runs[index] ??= { colour: colour(index), metrics: [], seen: "" });
    const seen = JSON.stringify(state);
    if (run.seen === seen) return false;
    const known = run.generation === state.generation ? run.metrics : [];
    const fresh = known.length < state.lines ? await get("metrics", { run: state.name, since: known.length }) : [];
    Object.assign(run, state, { seen, metrics: [...known, ...fresh] });
    return true;
  }));
  return changes.includes(true);
}

// Return the runs that the page's address names; all of them if it names none.
export function chosen(parameters) {
  const names = parameters.getAll("run");
  return names.length ? runs.filter((run) => names.includes(run.name)) : runs;
}

export const isOne = () => runs.length === 1;
