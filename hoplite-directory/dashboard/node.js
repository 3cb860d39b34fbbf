// Problems with their cures, the overview of the cluster, and the page of a node.
import { bar, charts, history } from "./chart.js";
import { count, duration, fine, make, memory, rate, replace, size, table, words } from "./dom.js";

export const node_link = (name) => make("a", { href: `#node/${encodeURIComponent(name)}`, class: "mono" }, name);
const object_link = (key, id) => make("a", { href: `#object/${key}`, class: "mono id" }, id);
const fact = (name, ...value) => make("div", {}, make("dt", {}, name), make("dd", {}, ...value));
const GOOD = ["complete", "cancelled", "gave-way"];

/** The outcome of a transfer as text or tag; without an outcome, "running" or "receiver left". */
export function outcome(grant, is_running) {
  if (grant.outcome === null) return is_running ? make("span", { class: "tag live" }, "running") : make("span", { class: "tag bad" }, "receiver left");
  return GOOD.includes(grant.outcome) ? words(grant.outcome) : make("span", { class: "tag bad" }, words(grant.outcome));
}

/** A table of grants: receiver, sender, and a bar for the time of the transfer. */
export function schedule(caption, grants, empty, object = null) {
  const begun = (grant) => grant.age_ms;
  const all = Math.max(...grants.map(begun), 1);
  const ended = (grant) => (grant.took_ms === null ? 0 : Math.max(0, grant.age_ms - grant.took_ms));
  const end = Math.min(...grants.map(ended), all);
  const rows = grants.map((grant) => {
    const took = grant.took_ms === null ? "" : `, ${duration(grant.took_ms)}`;
    const bad = grant.outcome !== null && !GOOD.includes(grant.outcome);
    const kind = grant.outcome === null ? "live" : bad ? "bad" : "over";
    const story = `${grant.sender} to ${grant.receiver}: begun ${duration(grant.age_ms)} ago${took}`;
    return [
      node_link(grant.receiver), node_link(grant.sender), ...(object ? [object(grant)] : []),
      bar(all - grant.age_ms, all - ended(grant), all - end, kind, story),
      grant.took_ms === null ? "–" : duration(grant.took_ms), words(grant.reason), outcome(grant, grant.is_running ?? true), `${duration(grant.age_ms)} ago`,
    ];
  });
  const columns = [["Receiver", ""], ["Sender", ""], ...(object ? [["Object", ""]] : []), [`Over ${duration(all - end)}`, "timeline"], ["Took", "number"], ["Why", ""], ["Outcome", ""], ["When", "number"]];
  return table(caption, columns, rows, empty);
}

/** Problems, each with its cause, its cure and its places. */
function problem_list(problems) {
  if (problems.length === 0) return make("p", { class: "calm" }, make("span", { class: "tag good" }, "good"), " No problem is known.");
  return make("ul", { class: "problems" }, problems.map((problem) => make("li", { class: problem.severity },
    make("h3", {}, make("span", { class: problem.severity === "critical" ? "tag bad" : "tag warn" }, problem.severity), ` ${problem.title[0].toUpperCase()}${problem.title.slice(1)}`),
    make("p", {}, make("b", {}, "Cause: "), problem.cause),
    make("p", {}, make("b", {}, "Cure: "), problem.cure),
    make("ul", { class: "places" }, problem.places.map((place) => make("li", {},
      place.node ? [node_link(place.node), ": "] : null,
      place.object ? object_link(place.object, place.text) : make("span", { class: "id" }, place.text))),
    problem.count > problem.places.length ? make("li", { class: "quiet" }, `and ${count(problem.count - problem.places.length)} more`) : null))));
}

/** Shows the titles of the first problems in one line above every view. */
export function banner(place, problems) {
  const critical = problems.filter((problem) => problem.severity === "critical").length;
  const text = problems.slice(0, 3).map((problem) => problem.title).join("; ") + (problems.length > 3 ? `; and ${problems.length - 3} more` : "");
  // Screen readers announce each change of this text, so an equal text stays.
  if (place.dataset.text === text) return;
  place.dataset.text = text;
  place.hidden = problems.length === 0;
  place.className = critical > 0 ? "banner critical" : "banner warning";
  replace(place, make("a", { href: "#overview" }, critical > 0 ? "Problems" : "Warnings"), `: ${text}`);
}

export function overview(main) {
  const problems = make("section", { "aria-label": "Problems" });
  const hour = make("section", { "aria-label": "The last hour" });
  const known = history(null);
  let [drawn, told] = [-1, null];
  replace(main, make("div", { class: "heading" }, make("h1", {}, "Overview")), problems, make("h2", {}, "The last hour of all nodes"), hour,
    make("p", { class: "note" }, "A point covers ten seconds. The history begins with the shard, and takes at most 32 MiB of its memory."));
  return {
    ask: known.ask,
    show: (_, overview) => {
      const text = JSON.stringify(overview.problems);
      if (text !== told) replace(problems, problem_list(overview.problems));
      told = text;
      if (known.changed !== drawn) replace(hour, charts(known));
      drawn = known.changed;
    },
  };
}

function facts(page) {
  const { node } = page;
  const load = node?.load;
  return make("dl", { class: "facts" },
    fact("State", node ? (node.connected ? make("span", { class: "tag good" }, "connected") : make("span", { class: "tag bad" }, "away")) : make("span", { class: "tag bad" }, "not connected")),
    node ? fact("Address", make("span", { class: "mono" }, node.address || "none")) : null,
    load ? fact("Memory", size(load.capacity_bytes - load.free_bytes), make("small", {}, ` of ${size(load.capacity_bytes)}`)) : null,
    load ? fact("Pinned", size(load.pinned_bytes)) : null,
    load ? fact("Evictable", size(load.evictable_bytes)) : null,
    load ? fact("Clients", count(load.clients)) : null,
    node ? fact("Copies", count(node.copies)) : null,
    load ? fact("Receiving", rate(load.receive_rate)) : null,
    load ? fact("Sending", rate(load.send_rate)) : null,
    load ? fact("Hops", count(load.hops)) : null);
}

function clients(page) {
  if (page.clients === null) return make("p", { class: "quiet" }, page.node ? "The node has not told of its clients yet." : "No data.");
  const rows = page.clients.map((client) => [client.name, count(client.references), size(client.bytes), size(client.held_bytes), count(client.calls)]);
  return table("Clients with references or open calls, most bytes first", [["Program", "text"], ["References", "number"], ["Bytes", "number"], ["Kept by references alone", "number"], ["Open calls", "number"]], rows, "No client holds a reference or waits for a call.");
}

function details(page) {
  const receiving = page.receiving.map((one) => [object_link(one.key, one.id), size(one.size_bytes), `${size(one.valid_bytes)}`, rate(one.rate)]);
  const links = page.links.map((link) => [node_link(link.peer), rate(link.bytes_per_second), fine(link.round_trip_ns), link.lanes > 0 ? count(link.lanes) : "–", link.is_slow ? make("span", { class: "tag bad" }, "slow") : "–"]);
  const cards = page.rails.map((card) => [make("span", { class: "mono" }, card.address), rate(card.receive_rate), rate(card.send_rate), size(card.received_bytes), size(card.sent_bytes), card.failed_routes > 0 ? make("span", { class: "tag bad" }, count(card.failed_routes)) : "–"]);
  const events = page.events.map((event) => [make("time", { datetime: new Date(event.at_ms).toISOString() }, new Date(event.at_ms).toLocaleTimeString("en-GB")), words(event.kind), words(event.text)]);
  const log = page.log === null ? make("p", { class: "quiet" }, "The node has not told of its log yet.")
    : make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log" }, page.log.length > 0 ? page.log.join("\n") : "The log is empty.");
  return [
    page.troubles.length > 0 ? make("ul", { class: "troubles" }, page.troubles.map((text) => make("li", {}, text))) : null,
    make("h2", {}, "Clients"), clients(page),
    make("h2", {}, "Transfers"),
    receiving.length > 0 ? table("Objects that the node receives now", [["Object", ""], ["Size", "number"], ["Arrived", "number"], ["Rate", "number"]], receiving, "") : null,
    schedule("The latest transfers from and to the node, as this shard granted them", page.transfers, "This shard remembers no transfer of the node.", (grant) => object_link(grant.key, grant.id)),
    make("h2", {}, "Links"),
    table("The links that carry least, of those that the node has used lately", [["To", ""], ["Rate", "number"], ["Round trip", "number"], ["Connections", "number"], ["", ""]], links, "The node has not used a link lately."),
    ...(cards.length > 0 ? [
      make("h2", {}, "Network cards"),
      table("Bytes of objects per second, and since the start of the store", [["Address", ""], ["Receiving", "number"], ["Sending", "number"], ["Received", "number"], ["Sent", "number"], ["Failed routes", "number"]], cards, ""),
    ] : []),
    make("h2", {}, "Events"),
    table("The newest first", [["When", ""], ["What", ""], ["", "text"]], events, "Nothing has happened."),
    make("h2", {}, "Log"), log,
  ];
}

export function node(main, argument) {
  let name = argument;
  try { name = decodeURIComponent(argument); } catch { /* A typed address may contain a bare %. */ }
  const title = make("h1", {}, make("span", { class: "mono id" }, name));
  const top = make("section", { "aria-label": "State" });
  const hour = make("section", { "aria-label": "The last hour" });
  const rest = make("section", { "aria-label": "Clients, transfers, links, events and log" });
  const known = history(name);
  let drawn = -1;
  replace(main, make("p", { class: "path" }, make("a", { href: "#nodes" }, "Nodes")), make("div", { class: "heading" }, title), top, hour, rest);
  return {
    ask: async (ask) => (await Promise.all([ask(`/api/node?name=${encodeURIComponent(name)}`), known.ask(ask)]))[0],
    show: (page) => {
      const labels = Object.entries(page.node?.labels ?? {}).map(([key, value]) => make("span", { class: "tag" }, `${key}=${value}`));
      replace(top, facts(page), page.node?.load ? make("p", {}, memory(page.node.load)) : null, labels.length > 0 ? make("p", {}, labels) : null);
      if (known.changed !== drawn) replace(hour, charts(known));
      drawn = known.changed;
      replace(rest, ...details(page));
    },
  };
}

/** A table of the objects that were sent lately, with a bar for the time of their transfers. */
export function recent(objects) {
  const all = Math.max(...objects.map((object) => object.age_ms), 1);
  const rows = objects.map((object) => [
    object_link(object.key, object.id), object.size_bytes === null ? "–" : size(object.size_bytes), count(object.grants),
    object.failed > 0 ? make("span", { class: "tag bad" }, count(object.failed)) : "–",
    bar(all - object.age_ms, all - object.age_ms + object.took_ms, all, object.running > 0 ? "live" : object.failed > 0 ? "bad" : "over", `begun ${duration(object.age_ms)} ago, for ${duration(object.took_ms)}`),
    object.running > 0 ? make("span", { class: "tag live" }, `${count(object.running)} running`) : duration(object.took_ms), `${duration(object.age_ms)} ago`,
  ]);
  return table("The last 100 objects that were sent, latest first; open one for its hops", [["Object", ""], ["Size", "number"], ["Transfers", "number"], ["Failed", "number"], [`The last ${duration(all)}`, "timeline"], ["Took", "number"], ["Began", "number"]], rows, "This shard remembers no transfer.");
}
