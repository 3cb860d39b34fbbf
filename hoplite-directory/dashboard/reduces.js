// Reduces and collectives: those that run, the latest past ones, and their schedules over time.
import { bar } from "./chart.js";
import { count, duration, fine, make, replace, size, table } from "./dom.js";
import { node_link } from "./node.js";

/** A length of time that is given in microseconds. */
const time = (micros) => (micros < 1e6 ? fine(micros * 1e3) : micros < 1e7 ? `${(micros / 1e6).toFixed(1)} s` : duration(micros / 1e3));
const plan_of = (reduce) => reduce.plan || make("span", { class: "quiet" }, "not known");

function running(answer) {
  const rows = answer.reduces.map((reduce) => [
    make("a", { href: `#object/${reduce.key}`, class: "mono id" }, reduce.target), reduce.op, `${count(reduce.joined)} of ${count(reduce.sources)}`,
    reduce.plan || make("span", { class: "quiet" }, "not planned yet"), make("span", { class: "mono" }, reduce.coordinator), duration(reduce.elapsed_ms),
  ]);
  return table("Reduces that run now", [["Target", ""], ["Operation", ""], ["Sources", "number"], ["Schedule", "text"], ["Coordinator", ""], ["For", "number"]], rows, `No reduces are running on the ${count(answer.telling)} nodes that report.`);
}

function past(reduces) {
  const rows = reduces.map((reduce) => [
    make("a", { href: `#reduce/${reduce.key}`, class: "mono id" }, reduce.target), reduce.op, size(reduce.size_bytes), count(reduce.steps),
    reduce.failed > 0 ? make("span", { class: "tag bad" }, count(reduce.failed)) : "–", plan_of(reduce), time(reduce.took_us), `${duration(reduce.age_us / 1e3)} ago`,
  ]);
  return table("The last 100 reduces and collectives, latest first; open one for its schedule over time", [["Target", ""], ["Operation", ""], ["Size", "number"], ["Steps", "number"], ["Failed", "number"], ["Schedule", "text"], ["Took", "number"], ["Began", "number"]], rows, "This shard knows of no past reduce.");
}

export function reduces(main) {
  const list = make("section", { "aria-label": "Reduces" });
  const ended = make("section", { "aria-label": "Past reduces and collectives" });
  replace(main, make("div", { class: "heading" }, make("h1", {}, "Reduces and collectives")), list, make("h2", {}, "Lately"), ended,
    make("p", { class: "note" }, "Stores report the reduces that they coordinate, 16 each at most. A report has at most 64 steps, so schedules of very frequent reduces may lack some."));
  return {
    ask: (ask) => ask("/api/reduces"),
    show: (answer) => {
      replace(list, running(answer));
      replace(ended, past(answer.past));
    },
  };
}

/** A table of the steps of a reduce: who combined what from whom, with a bar for its time. */
function schedule(one, position) {
  const rows = one.rows.map((row) => {
    const names = row.senders.join(", ") || "itself";
    const senders = row.senders.flatMap((name, index) => [index > 0 ? ", " : null, node_link(name)]);
    return [
      node_link(row.node),
      row.senders.length === 0 ? make("span", { class: "quiet" }, "itself") : make("span", {}, senders, row.more_senders > 0 ? ` and ${count(row.more_senders)} more` : null),
      row.hop ? "a partial result" : "the result", size(row.size_bytes),
      bar(row.after_us, row.after_us + row.took_us, one.took_us, row.complete ? "over" : "bad", `${row.node} from ${names}: begun after ${time(row.after_us)}, ${time(row.took_us)}`),
      time(row.after_us), time(row.took_us), row.complete ? "complete" : make("span", { class: "tag bad" }, "ended early"),
    ];
  });
  const columns = [["Node", ""], ["Received from", "text"], ["Makes", ""], ["Size", "number"], [`Over ${time(one.took_us)}`, "timeline"], ["After", "number"], ["Took", "number"], ["Outcome", ""]];
  return [
    make("h2", {}, position === 0 ? "The latest" : `Before, ${duration(one.age_us / 1e3)} ago`),
    make("p", {}, `${one.op} of ${size(one.size_bytes)}, begun ${duration(one.age_us / 1e3)} ago: `, plan_of(one)),
    table(`Steps, earliest first, schedule ${position + 1}`, columns, rows, ""),
    one.steps > one.rows.length ? make("p", { class: "quiet" }, `and ${count(one.steps - one.rows.length)} more steps`) : null,
  ];
}

export function reduce(main, key) {
  const title = make("span", { class: "mono id" }, "…");
  const place = make("section", { "aria-label": "Schedules over time" });
  replace(main, make("p", { class: "path" }, make("a", { href: "#reduces" }, "Reduces")), make("div", { class: "heading" }, make("h1", {}, title)),
    make("p", {}, make("a", { href: `#object/${key}` }, "Copies and transfers of the object")), place,
    make("p", { class: "note" }, "Times come from the stores' reports, so those of different nodes may differ by milliseconds."));
  return {
    ask: (ask) => ask(`/api/reduce?id=${encodeURIComponent(key)}`),
    show: (answer) => {
      title.textContent = answer.target;
      const shown = answer.schedules.flatMap(schedule);
      replace(place, ...(shown.length > 0 ? shown : [make("p", { class: "quiet" }, "This shard knows of no past reduce of this object.")]));
    },
  };
}
