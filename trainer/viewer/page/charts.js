// Charts as SVG, without a library, because the page must work without a network.
import { short, svg } from "./dom.js";

const WIDTH = 340, HEIGHT = 150, LEFT = 42, BOTTOM = 18, TOP = 6, RIGHT = 6;

// Return ticks whose distance is 1, 2 or 5 times a power of ten.
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) {
    found.push(+value.toPrecision(12));
  }
  return found;
}

// Return the smallest and the largest number. `Math.min(...numbers)` fails for about 100,000: each would be an argument.
export const range = (numbers) => numbers.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [Infinity, -Infinity]);

export function smoothed(values, window) {
  let sum = 0;
  return values.map((value, index) => {
    sum += value - (index < window ? 0 : values[index - window]);
    return sum / Math.min(index + 1, window);
  });
}

function frame(low, high, first, last, width, height) {
  const x = (step) => LEFT + (width - LEFT - RIGHT) * (last > first ? (step - first) / (last - first) : 0.5);
  const y = (value) => height - BOTTOM - (height - BOTTOM - TOP) * (high > low ? (value - low) / (high - low) : 0.5);
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const value of ticks(low, high)) {
    image.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
    image.append(svg("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, short(value)));
  }
  return { image, x, y };
}

function stepLabels(image, steps, x, height) {
  for (const value of steps.filter(Number.isInteger)) {
    image.append(svg("text", { x: x(value), y: height - 4, "text-anchor": "middle" }, short(value)));
  }
}

// Draw one curve for each of `series`, which have a colour and points: [step, value] pairs. A curve is the running mean
// over the raw values; with `dotted` the values are dots that a thin line joins.
export function lineChart(series, { dotted, label, onHover }) {
  const all = series.flatMap(({ points }) => points);
  const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
  let [low, high] = range(values);
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const [first, last] = range(steps);
  const { image, x, y } = frame(low, high, first, last, WIDTH, HEIGHT);
  image.setAttribute("aria-label", label);
  stepLabels(image, ticks(first, last, 5), x, HEIGHT);
  for (const { points, colour: stroke } of series) {
    const path = (heights) => heights.map((height, index) => `${index ? "L" : "M"}${x(points[index][0]).toFixed(1)} ${y(height).toFixed(1)}`).join("");
    const raw = points.map(([, value]) => value), window = dotted ? 1 : Math.max(1, Math.round(raw.length / 20));
    if (dotted || window > 1) image.append(svg("path", { class: "raw", stroke, d: path(raw) }));
    if (!dotted) image.append(svg("path", { class: "smooth", stroke, d: path(smoothed(raw, window)) }));
    if (dotted || raw.length === 1) {
      image.append(...points.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 3, fill: stroke })));
    }
  }
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  image.append(cursor);
  image.addEventListener("mousemove", (event) => {
    const box = image.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = steps.reduce((best, step) => (Math.abs(x(step) - at) < Math.abs(x(best) - at) ? step : best));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(nearest));
    cursor.setAttribute("visibility", "visible");
    onHover(nearest);
  });
  image.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); onHover(null); });
  return image;
}

// Draw one column per step; `ink` returns the colour of a part.
export function stackedBars(steps, parts, ink) {
  const names = Object.keys(parts), wide = 1100, tall = 240;
  const sums = steps.map((_, index) => names.reduce((sum, name) => sum + (parts[name][index] ?? 0), 0));
  const width = (wide - LEFT - RIGHT) / Math.max(steps.length, 1);
  const { image, y } = frame(0, Math.max(range(sums)[1], 1e-9), 0, 1, wide, tall);
  image.setAttribute("class", "bars");
  image.setAttribute("aria-label", `seconds of ${names.join(", ")} by step`);
  const middle = (step) => LEFT + (steps.indexOf(step) + 0.5) * width;
  stepLabels(image, ticks(steps[0], steps.at(-1), 12).filter((step) => steps.includes(step)), middle, tall);
  steps.forEach((step, index) => {
    let base = 0;
    names.forEach((name) => {
      const value = parts[name][index] ?? 0;
      if (value <= 0) return;
      image.append(svg("rect", {
        x: LEFT + index * width, width: Math.max(width - 1, 0.5), fill: ink(name),
        y: y(base + value), height: Math.max(y(base) - y(base + value), 0),
      }, svg("title", {}, `step ${step}: ${name} ${short(value)} s`)));
      base += value;
    });
  });
  return image;
}
