// Charts as SVG, without a library, because the page must work without a network.

const WIDTH = 340, HEIGHT = 150, LEFT = 42, BOTTOM = 18, TOP = 6, RIGHT = 6;
const COLOURS = ["#4c8fd0", "#e0893b", "#59a86a", "#c95d63", "#8d6cc0", "#9a7156", "#d07bb4", "#7d8a96", "#b3ad3a"];

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  if (Number.isInteger(value)) return String(value);
  return size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(2) : value.toFixed(4);
}

// Return ticks whose distance is 1, 2 or 5 times a power of ten.
export function ticks(low, high, count = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(+value.toPrecision(12));
  return found;
}

export function smoothed(values, window) {
  return values.map((_, index) => {
    const part = values.slice(Math.max(0, index - window + 1), index + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

function frame(low, high, first, last) {
  const x = (step) => LEFT + (WIDTH - LEFT - RIGHT) * (last > first ? (step - first) / (last - first) : 0.5);
  const y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (high > low ? (value - low) / (high - low) : 0.5);
  const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  for (const value of ticks(low, high)) {
    image.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    image.append(svg("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(first, last, 5).filter(Number.isInteger))
    image.append(svg("text", { x: x(value), y: HEIGHT - 4, "text-anchor": "middle" }, short(value)));
  return { image, x, y };
}

// Draw `points` as a line with its running mean, and `dots` on top; both are [step, value] pairs.
export function lineChart(points, dots, onHover) {
  const all = [...points, ...dots].filter(([, value]) => Number.isFinite(value));
  if (!all.length) return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const { image, x, y } = frame(low, high, Math.min(...steps), Math.max(...steps));
  const line = points.filter(([, value]) => Number.isFinite(value));
  const path = (values) => values.map((value, index) => `${index ? "L" : "M"}${x(line[index][0]).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const raw = line.map(([, value]) => value), window = Math.max(1, Math.round(raw.length / 20));
  if (window > 1) image.append(svg("path", { class: "raw", d: path(raw) }));
  image.append(svg("path", { class: "smooth", d: path(smoothed(raw, window)) }));
  image.append(svg("g", { class: "dots" }, ...dots.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 3 }))));
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  image.append(cursor);
  image.addEventListener("mousemove", (event) => {
    const box = image.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = all.reduce((best, point) => (Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best));
    for (const name of ["x1", "x2"]) cursor.setAttribute(name, x(nearest[0]));
    cursor.setAttribute("visibility", "visible");
    onHover?.(nearest);
  });
  image.addEventListener("mouseleave", () => { cursor.setAttribute("visibility", "hidden"); onHover?.(null); });
  return image;
}

// Draw one column per step, with one colour per series.
export function stackedBars(steps, series) {
  const names = Object.keys(series), wide = 1100, tall = 240;
  const sums = steps.map((_, index) => names.reduce((sum, name) => sum + (series[name][index] ?? 0), 0));
  const high = Math.max(...sums, 1e-9), width = (wide - LEFT - RIGHT) / Math.max(steps.length, 1);
  const y = (value) => tall - BOTTOM - (tall - BOTTOM - TOP) * (value / high);
  const image = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, class: "bars" });
  for (const value of ticks(0, high)) {
    image.append(svg("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: y(value), y2: y(value) }));
    image.append(svg("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, short(value)));
  }
  steps.forEach((step, index) => {
    let base = 0;
    names.forEach((name, place) => {
      const value = series[name][index] ?? 0;
      if (value <= 0) return;
      const bar = svg("rect", { x: LEFT + index * width, width: Math.max(width - 0.5, 0.5), y: y(base + value), height: Math.max(y(base) - y(base + value), 0), fill: COLOURS[place % COLOURS.length] });
      bar.append(svg("title", {}, `step ${step}: ${name} ${short(value)} s`));
      image.append(bar);
      base += value;
    });
  });
  return { image, colours: Object.fromEntries(names.map((name, place) => [name, COLOURS[place % COLOURS.length]])) };
}
