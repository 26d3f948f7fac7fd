// One episode as the token stream that the learner sees.
import { address, el, get, here, short } from "./dom.js";
import { colourOf, filters, matching, path } from "./episodes.js";

// What the learner did with the sampled tokens of a file.
const LEARNED = { train: "trained on", eval: "evaluation, not trained on", rollout: "not trained on" };
const NAMES = { prompt: "prompt", sampled: "sampled", observation: "observed", template: "template" };

// A darker colour means a less probable token.
const heat = (logprob) => `rgba(214, 69, 65, ${(0.85 * (1 - Math.exp(logprob / 2))).toFixed(3)})`;

function stream(data, hot) {
  let turn = 0;
  const image = (number) => el("img", { src: `data:image/png;base64,${data.images[number]}`, alt: `image ${number}` });
  const token = (segment, text, index) => el("span", {
    title: `${segment.ids[index].join(" ")}   logprob ${short(segment.logprobs[index])}   p ${short(Math.exp(segment.logprobs[index]))}   policy ${segment.versions[index]}`,
    style: hot ? `background:${heat(segment.logprobs[index])}` : null,
  }, text);
  return el("div", { class: `stream${hot ? " heat" : ""}` }, data.segments.map((segment) => {
    const length = segment.end - segment.start;
    const about = `${segment.kind === "sampled" ? `turn ${++turn}, ` : ""}${length} token${length === 1 ? "" : "s"}`;
    return el("div", { class: `segment ${segment.kind}` },
      el("div", { class: "gutter" }, NAMES[segment.kind], el("small", {}, about)),
      el("div", { class: "text" }, segment.pieces?.map((text, index) => token(segment, text, index)) ?? segment.text, (segment.images ?? []).map(image)));
  }));
}

function facts(data) {
  const { metrics } = data;
  const shown = {
    reward: el("b", { class: colourOf(data.reward) }, short(data.reward)), "ended by": data.stop_reason ?? "–",
    "turn rewards": (data.turn_rewards ?? []).map(short).join(" "), seconds: short(metrics.seconds),
    generating: short(metrics.seconds_generating), "in tools": short(metrics.seconds_in_tools),
  };
  return el("dl", { class: "facts" }, Object.entries(shown).filter(([, value]) => value && value !== "–")
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// Whose token stream it is: the main one needs no heading unless several players have one each.
const heading = ({ role, reward }, number) => (role ? [`${role}, reward ${short(reward)}`] : number ? [`branch ${number}`] : []);

export async function episode() {
  const { parameters } = here();
  const run = parameters.get("run"), file = parameters.get("file"), index = Number(parameters.get("episode"));
  const [data, rows] = await Promise.all([get("episode", { run, file, episode: index }), get("episodes", { run, file })]);
  const found = matching(rows, parameters).map((row) => row.index);
  const step = (number, text, key) => el("a", {
    class: "button", "data-key": key, title: `${text} (${key})`,
    href: number === undefined ? null : address("episode", { run, file, episode: number, ...filters(parameters) }),
    "aria-disabled": number === undefined ? "true" : null,
  }, text);
  const body = el("div");
  const toggle = el("input", { type: "checkbox", onchange: () => draw() });
  const draw = () => body.replaceChildren(...[data, ...data.branches].flatMap((each, number) => [
    ...heading(each, number).map((text) => el("h2", {}, text)), stream(each, toggle.checked)]));
  draw();
  const raw = (title, value) => el("details", {}, el("summary", {}, title), el("pre", {}, JSON.stringify(value, null, 1)));
  return {
    title: data.trajectory_id,
    nodes: [
      el("div", { class: "tools" }, path(run, file, data.trajectory_id), el("span", { class: "end" },
        step(found.findLast((each) => each < index), "‹ previous", "p"), step(found.find((each) => each > index), "next ›", "n"))),
      facts(data),
      ...(data.error ? [el("p", { class: "bad" }, data.error)] : []),
      el("div", { class: "legend" }, el("span", {}, el("i", { class: "swatch sampled" }), `sampled (${LEARNED[data.file_kind]})`),
        el("span", {}, el("i", { class: "swatch observation" }), "observed"), el("label", {}, toggle, " colour by probability")),
      body,
      raw("task", data.task), raw("messages", data.messages), raw("metrics", { ...data.metrics, failures: data.failures }),
    ],
  };
}

