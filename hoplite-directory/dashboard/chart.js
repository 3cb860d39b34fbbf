// Charts of the last hour, and bars on a time axis. Each also gives its numbers as text.
import { count, draw, duration, make, part, rate, size } from "./dom.js";

/** The names of the numbers in each point of /api/history, in order. */
const FIELDS = ["received", "sent", "used", "gets", "failures", "median", "slowest"];
const STEPS = 360;
const WIDTH = 360;
const HEIGHT = 64;

const seconds = (value) => (value === 0 ? "0 s" : value < 0.001 ? `${(value * 1e6).toFixed(0)} µs` : value < 1 ? `${(value * 1e3).toFixed(1)} ms` : `${value.toFixed(1)} s`);
const a_second = (value) => `${value < 10 ? value.toFixed(1) : count(Math.round(value))}/s`;
/** For each chart: its title, the format of its values, and its lines as [field, label]. */
const CHARTS = [
  ["Throughput", (value) => rate(Math.round(value)), [["received", "received"], ["sent", "sent"]]],
  ["Memory in use", (value) => size(Math.round(value)), [["used", "in use"]]],
  ["Gets", a_second, [["gets", "answered with an object"]]],
  ["Failed calls", a_second, [["failures", "failed"]]],
  ["Waits of gets", seconds, [["median", "median"], ["slowest", "99th percentile"]]],
];

/** The known points of a node, or of the cluster (null), and `ask`, which requests newer points. */
export function history(node) {
  const known = { points: [], last: 0, step_ms: 10_000, changed: 0 };
  const query = node === null ? "" : `node=${encodeURIComponent(node)}&`;
  known.ask = async (ask) => {
    const answer = await ask(`/api/history?${query}after=${known.last}`);
    // The answer does not continue the known points if the shard restarted or points expired.
    const fresh = answer.last < known.last || answer.last - answer.points.length !== known.last;
    if (fresh || answer.points.length > 0) known.changed += 1;
    known.points = [...(fresh ? [] : known.points), ...answer.points].slice(-STEPS);
    [known.last, known.step_ms] = [answer.last, answer.step_ms];
    return known;
  };
  return known;
}

function line(values, highest, name) {
  const first = STEPS - values.length;
  let path = "";
  let was_known = false;
  values.forEach((value, index) => {
    if (value !== null) path += `${was_known ? "L" : "M"}${first + index + 0.5} ${(HEIGHT - (HEIGHT - 3) * part(value, highest)).toFixed(1)}`;
    // Makes a point visible that lies between unknown ones.
    if (value !== null && !was_known) path += "h0.5";
    was_known = value !== null;
  });
  return draw("path", { class: `line ${name}`, d: path });
}

const opened = new Set();

/** A table of a chart's numbers, with a row for each minute, for users who cannot see the chart. */
function values_of(id, title, unit, lines, step_ms) {
  const every = Math.max(1, Math.round(60_000 / step_ms));
  const rows = [];
  const length = lines[0].values.length;
  for (let back = 0; back < length; back += every) {
    const index = length - 1 - back;
    rows.push(make("tr", {}, make("th", { scope: "row" }, back === 0 ? "now" : `${duration(back * step_ms)} ago`),
      lines.map(({ values }) => make("td", { class: "number" }, values[index] === null ? "–" : unit(values[index])))));
  }
  const head = make("tr", {}, make("th", { scope: "col" }, "When"), lines.map(({ label }) => make("th", { scope: "col", class: "number" }, label)));
  const toggle = (event) => (event.target.open ? opened.add(id) : opened.delete(id));
  return make("details", { open: opened.has(id), ontoggle: toggle }, make("summary", { id }, "Numbers"),
    make("div", { class: "scroll values", tabindex: "0", role: "region", "aria-label": `${title}, numbers` },
      make("table", {}, make("caption", {}, title), make("thead", {}, head), make("tbody", {}, rows))));
}

function chart([title, unit, fields], { points, step_ms }) {
  const lines = fields.map(([field, label]) => ({ field, label, values: points.map((point) => point[FIELDS.indexOf(field)]) }));
  const known = lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const highest = Math.max(...known, 0);
  const latest = (values) => { const value = values.at(-1) ?? null; return value === null ? "–" : unit(value); };
  const now = lines.map(({ label, values }) => `${label} ${latest(values)}`).join(", ");
  const id = `numbers-${title.toLowerCase().replaceAll(" ", "-")}`;
  return make("figure", { class: "chart" },
    make("figcaption", {}, make("b", {}, title), lines.map(({ field, label, values }) => make("span", { class: "quiet" }, make("span", { class: `swatch ${field}`, "aria-hidden": "true" }), `${label} ${latest(values)}`))),
    draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title} in the last hour: now ${now}; highest ${unit(highest)}` },
      draw("path", { class: "grid", d: `M0 ${HEIGHT}H${WIDTH}M90 0V${HEIGHT}M180 0V${HEIGHT}M270 0V${HEIGHT}` }),
      ...lines.map(({ field, values }) => line(values, highest, field))),
    make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, "1 h ago"), make("span", {}, `highest ${unit(highest)}`), make("span", {}, "now")),
    points.length > 0 ? values_of(id, title, unit, lines, step_ms) : null);
}

/** The charts of a node, or of the cluster. */
export function charts(known) {
  const quiet = known.points.length === 0 ? make("p", { class: "quiet" }, "The first point comes ten seconds after the start.") : null;
  return make("div", { class: "charts" }, quiet, CHARTS.map((one) => chart(one, known)));
}

/**
 * A bar from `from` to `to` on an axis of `all` milliseconds. `words` is its tooltip and its
 * text for screen readers.
 */
export function bar(from, to, all, kind, words) {
  const track = make("span", { class: "track", role: "img", "aria-label": words, title: words });
  const piece = make("span", { class: kind });
  piece.style.left = `${100 * part(from, all)}%`;
  piece.style.width = `${Math.max(0.4, 100 * (part(to, all) - part(from, all)))}%`;
  track.append(piece);
  return track;
}
