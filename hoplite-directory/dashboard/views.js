// The views. Each creates its headings and controls once, and then shows each answer of the shard.
import { count, duration, fine, make, memory, part, rate, replace, size, table, words } from "./dom.js";
import { node, node_link, overview, recent, schedule } from "./node.js";
import { reduce, reduces } from "./reduces.js";
import { percent, prefixes, text_of } from "./prefixes.js";
import { trees } from "./tree.js";

const ROWS = 100;
const TROUBLES = new Set(["refused", "transfer-failed", "stranger", "incompatible", "object-lost", "disconnected", "trouble"]);

const heading = (text, ...more) => make("div", { class: "heading" }, make("h1", {}, text), ...more);
const field = (label, control) => make("label", { class: "field" }, make("span", {}, label), control);
const flags = (object) => [["inline", object.inline], ["pinned", object.pinned]].filter(([, is]) => is).map(([name]) => make("span", { class: "tag" }, name));

function type(object) {
  if (object.shape) return `${object.dtype}[${object.shape.join(",")}]`;
  return object.dtype === "opaque" ? "–" : object.dtype;
}

function object_rows(objects) {
  return objects.map((object) => [
    make("a", { href: `#object/${object.key}`, class: "mono id" }, object.id),
    size(object.size_bytes),
    make("span", { class: "mono" }, type(object)),
    duration(object.age_ms),
    node_link(object.creator),
    object.lost ? make("span", { class: "tag bad" }, "lost") : `${count(object.complete)} of ${count(object.copies)}`,
    object.transfers ? count(object.transfers) : "–",
    object.waiting ? count(object.waiting) : "–",
    make("span", {}, flags(object)),
  ]);
}

const OBJECT_COLUMNS = [["Object", ""], ["Size", "number"], ["Type", ""], ["Age", "number"], ["Creator", ""], ["Complete", "number"], ["Transfers", "number"], ["Waiting", "number"], ["", ""]];

/** The used share of a node's memory in tenths, 0 to 10; null if the node has not reported it. */
const fullness = (node) => (node.load ? Math.round(10 * part(node.load.capacity_bytes - node.load.free_bytes, node.load.capacity_bytes)) : null);

function nodes(main, _argument, refresh) {
  const SORTS = {
    name: ["Name", (node) => node.node],
    memory: ["Memory in use", (node) => -(node.load ? node.load.capacity_bytes - node.load.free_bytes : -1)],
    receiving: ["Receiving", (node) => -(node.load?.receive_rate ?? -1)],
    sending: ["Sending", (node) => -(node.load?.send_rate ?? -1)],
    copies: ["Copies", (node) => -node.copies],
  };
  let after = [""];
  let first = 0;
  let latest = null;
  const filter = make("input", { id: "filter", type: "search", size: 20, oninput: () => { first = 0; draw_all(); } });
  const sort = make("select", { id: "sort", onchange: () => draw_all() }, Object.entries(SORTS).map(([key, [title]]) => make("option", { value: key }, title)));
  const group = make("select", { id: "group", onchange: () => draw_all() }, make("option", { value: "" }, "–"));
  const map = make("section", { "aria-label": "Map of the memory" });
  const list = make("section", { "aria-label": "List of nodes" });
  replace(main, heading("Nodes", make("div", { class: "controls" }, field("Name or label", filter), field("Sort by", sort), field("Group by", group))), map, list);

  function cells(some) {
    return make("span", { class: "cells" }, some.map((node) => {
      const full = fullness(node);
      const kind = node.connected ? (full === null ? "cell untold" : `cell full-${full}`) : "cell away";
      return make("span", { class: kind, title: `${node.node}: ${node.connected ? (full === null ? "no data" : `${full * 10}% in use`) : "away"}` });
    }));
  }

  function draw_map(some) {
    const key = group.value;
    const groups = new Map();
    for (const node of some) {
      const name = key ? `${key}=${node.labels[key] ?? "(none)"}` : "";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(node);
    }
    const told = some.filter((node) => fullness(node) !== null);
    const label = `${count(some.length)} nodes; ${count(told.filter((node) => fullness(node) >= 9).length)} of them use 90% of their memory or more`;
    const parts = [...groups].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true })).map(([name, members]) => {
      const full = members.reduce((sum, node) => sum + (node.load ? node.load.capacity_bytes - node.load.free_bytes : 0), 0);
      const all = members.reduce((sum, node) => sum + (node.load?.capacity_bytes ?? 0), 0);
      return make("div", { class: "group" }, name ? make("p", {}, make("b", {}, name), ` ${count(members.length)} nodes, ${size(full)} of ${size(all)}`) : null, cells(members));
    });
    replace(map, make("div", { class: "map", role: key ? undefined : "img", "aria-label": label }, parts), legend());
  }

  function legend() {
    const kinds = [["pinned", "pinned"], ["evictable", "evictable"], ["growing", "growing"], ["reserved", "reserved"]].map(([kind, name]) => [make("span", { class: `cell ${kind}` }), ` ${name}   `]);
    const steps = [0, 2, 4, 6, 8, 10].map((step) => make("span", { class: `cell full-${step}` }));
    return make("div", { class: "legend", "aria-hidden": "true" },
      make("span", {}, "Map: memory in use 0% ", steps, " 100%   ", make("span", { class: "cell untold" }), " no data   ", make("span", { class: "cell away" }), " away"),
      make("span", {}, "Bars: ", kinds));
  }

  function draw_all() {
    if (!latest) return;
    const keys = [...new Set(latest.nodes.flatMap((node) => Object.keys(node.labels)))].sort();
    const known = [...group.options].slice(1).map((option) => option.value);
    if (keys.join() !== known.join()) {
      const chosen = group.value;
      group.replaceChildren(make("option", { value: "" }, "–"), ...keys.map((key) => make("option", { value: key }, key)));
      group.value = keys.includes(chosen) ? chosen : "";
    }
    const wanted = filter.value.toLowerCase();
    const labels = (node) => Object.entries(node.labels).map(([key, value]) => `${key}=${value}`);
    const some = latest.nodes.filter((node) => !wanted || node.node.toLowerCase().includes(wanted) || labels(node).some((label) => label.toLowerCase().includes(wanted)));
    const by = SORTS[sort.value][1];
    if (sort.value !== "name") some.sort((one, other) => by(one) - by(other));
    draw_map(some);
    first = Math.min(first, Math.max(0, Math.floor((some.length - 1) / ROWS) * ROWS));
    const rows = some.slice(first, first + ROWS).map((node) => [
      make("span", {}, node_link(node.node), node.connected ? null : make("span", { class: "tag bad" }, "away")),
      memory(node.load),
      node.load ? size(node.load.capacity_bytes - node.load.free_bytes) : "–",
      node.load ? size(node.load.capacity_bytes) : "–",
      node.load ? rate(node.load.receive_rate) : "–",
      node.load ? rate(node.load.send_rate) : "–",
      count(node.copies),
      node.load ? count(node.load.clients) : "–",
      make("span", { class: "labels" }, labels(node).map((label) => make("span", { class: "tag" }, label))),
      make("span", { class: "mono quiet" }, node.address),
    ]);
    const pages = make("div", { class: "pages" },
      make("button", { type: "button", id: "earlier", disabled: first === 0 && after.length === 1, onclick: earlier }, "Previous"),
      make("span", {}, some.length === 0 ? "none" : `${count(first + 1)}–${count(Math.min(first + ROWS, some.length))} of ${count(some.length)}${latest.more ? " and more" : ""}`),
      make("button", { type: "button", id: "later", disabled: first + ROWS >= some.length && !latest.more, onclick: later }, "Next"));
    replace(list, table("Nodes", [["Node", ""], ["Memory", "wide"], ["In use", "number"], ["Size", "number"], ["Receiving", "number"], ["Sending", "number"], ["Copies", "number"], ["Clients", "number"], ["Labels", ""], ["Address", ""]], rows, "No node."), pages);
  }

  function later() {
    if (first + ROWS < latest.nodes.length && !filter.value) first += ROWS;
    else if (filter.value && document.getElementById("later").disabled === false && !latest.more) first += ROWS;
    else if (latest.more) { after.push(latest.nodes.at(-1).node); first = 0; refresh(); return; }
    draw_all();
  }

  function earlier() {
    if (first > 0) first -= ROWS;
    else if (after.length > 1) { after.pop(); first = 0; refresh(); return; }
    draw_all();
  }

  return {
    ask: (ask) => ask(`/api/nodes?limit=1000&after=${encodeURIComponent(after.at(-1))}`),
    show: (answer) => { latest = answer; draw_all(); },
  };
}

function objects(main, argument, refresh) {
  let pages = [""];
  const prefix = make("input", { id: "prefix", type: "search", size: 28, maxlength: 255 });
  const bytes = make("input", { id: "size", type: "number", min: 0, step: "any", class: "short", placeholder: "0" });
  const copies = make("input", { id: "copies", type: "number", min: 0, class: "short", placeholder: "0" });
  prefix.value = text_of(argument);
  // The submitted search. The prefix is percent-encoded because ids may be arbitrary bytes.
  let wanted = { prefix: percent(argument), size: "0", copies: "0" };
  const search = (event) => {
    event.preventDefault();
    wanted = { prefix: encodeURIComponent(prefix.value.toWellFormed()), size: String(Math.round((Number(bytes.value) || 0) * 1048576)), copies: String(Math.round(Number(copies.value) || 0)) };
    pages = [""];
    refresh();
  };
  const form = make("form", { class: "controls", role: "search", onsubmit: search }, field("Id begins with", prefix), field("At least MiB", bytes), field("At least copies", copies), make("button", { type: "submit" }, "Search"));
  const list = make("section", { "aria-label": "List of objects" });
  replace(main, heading("Objects", form), make("p", {}, make("a", { href: "#prefixes" }, "Objects by prefix")), list);
  const turn = (change) => () => { change(); refresh(); };
  return {
    ask: (ask) => {
      const { prefix, ...rest } = wanted;
      return ask(`/api/objects?prefix=${prefix}&${new URLSearchParams({ ...rest, after: pages.at(-1), limit: "100" })}`);
    },
    show: (answer) => {
      const more = answer.next === null ? "the last of them" : answer.objects.length < 100 ? "20,000 searched; there are more" : "there are more";
      replace(list, table("Objects", OBJECT_COLUMNS, object_rows(answer.objects), answer.next === null ? "No object." : "No match in the first 20,000; press Next to continue."),
        make("div", { class: "pages" },
          make("button", { type: "button", id: "earlier", disabled: pages.length === 1, onclick: turn(() => pages.pop()) }, "Previous"),
          make("span", {}, `page ${count(pages.length)}, ${more}`),
          make("button", { type: "button", id: "later", disabled: answer.next === null, onclick: turn(() => pages.push(answer.next)) }, "Next")));
    },
  };
}

/** Shows an object's facts, its copies as trees, and its latest grants. */
function show_tree(place, tree, limit, more) {
  const { object } = tree;
  if (!object) return replace(place, make("p", { class: "quiet" }, "This shard knows no such object, or no longer."), grants(tree));
  const { order, element } = trees(tree, limit);
  const total = order.reduce((sum, entry) => sum + (entry.node.live ? entry.node.rate ?? 0 : 0), 0);
  const fact = (name, ...value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  replace(place,
    make("dl", { class: "facts" }, fact("Size", size(object.size_bytes)), fact("Type", type(object)), fact("Created", `${duration(object.age_ms)} ago by `, node_link(object.creator)), fact("Complete", `${count(object.complete)} of ${count(object.copies)} copies`), fact("In transfer", count(object.transfers)), fact("Total rate", rate(total)), fact("Waiting for a sender", count(object.waiting)), object.lost ? fact("State", make("span", { class: "tag bad" }, "lost")) : null),
    element,
    order.length > limit ? make("div", { class: "pages" }, make("span", {}, `${count(limit)} of ${count(order.length)} are shown`), make("button", { type: "button", id: "more", onclick: more }, "Show more")) : null,
    object.copies > tree.copies.length ? make("p", { class: "quiet" }, `${count(object.copies - tree.copies.length)} more copies are not shown.`) : null,
    grants(tree));
}

function grants(tree) {
  const latest = [...tree.grants].reverse();
  return make("details", { id: "grants", open: true }, make("summary", { id: "grants-summary" }, `The latest ${count(latest.length)} grants, as a schedule of hops`),
    schedule("Who sent to whom, and when", latest, "This shard remembers no grant of the object."));
}

/** Calls `show`, and keeps the list of grants open or closed. */
function keep_open(place, show) {
  const was_open = place.querySelector("details")?.open ?? true;
  show();
  const now = place.querySelector("details");
  if (now) now.open = was_open;
}

function object(main, key, refresh) {
  let limit = 200;
  const title = make("span", { class: "mono id" }, "…");
  const place = make("section", { "aria-label": "Copies and transfers" });
  replace(main, make("p", { class: "path" }, make("a", { href: "#objects" }, "Objects")), make("div", { class: "heading" }, make("h1", {}, title)), place);
  return {
    ask: (ask) => ask(`/api/object?id=${encodeURIComponent(key)}`),
    show: (tree) => {
      title.textContent = tree.id;
      keep_open(place, () => show_tree(place, tree, limit, () => { limit += 200; refresh(); }));
    },
  };
}

function transfers(main) {
  const list = make("section", { "aria-label": "Objects in transfer" });
  const title = make("h2", {}, "");
  const place = make("section", { "aria-label": "Busiest object" });
  const past = make("section", { "aria-label": "Objects that were sent lately" });
  replace(main, heading("Transfers"), list, title, place, make("h2", {}, "Lately"), past);
  return {
    ask: async (ask) => {
      const busy = await ask("/api/transfers");
      const tree = busy.objects.length > 0 ? await ask(`/api/object?id=${busy.objects[0].key}`) : null;
      return { busy, tree, sent: (await ask("/api/recent")).objects };
    },
    show: ({ busy, tree, sent }) => {
      replace(list, table("Objects in transfer, most receivers first", OBJECT_COLUMNS, object_rows(busy.objects), "This shard has no transfers running."));
      title.replaceChildren(...(tree ? ["How ", make("span", { class: "mono id" }, tree.id), " spreads"] : []));
      if (tree) keep_open(place, () => show_tree(place, tree, 200, () => { location.hash = `#object/${busy.objects[0].key}`; }));
      else replace(place);
      replace(past, recent(sent));
    },
  };
}

/** The step of a rate, 1 to 10, on a logarithmic scale from the lowest to the highest rate. */
function warmth(rate, lowest, highest) {
  if (highest <= lowest) return 10;
  return 1 + Math.round(9 * part(Math.log(rate / lowest), Math.log(highest / lowest)));
}

/**
 * A table of links with coloured cells. A cell shows the rate; its tooltip and its text for screen
 * readers add the round trip.
 */
function heat({ places, cells }) {
  const rates = cells.map((cell) => Math.max(1, cell.bytes_per_second));
  const [lowest, highest] = [Math.min(...rates), Math.max(...rates)];
  const known = new Map(cells.map((cell) => [cell.from * places.length + cell.to, cell]));
  const head = make("tr", {}, make("th", { scope: "col" }, "From \\ to"), places.map((place) => make("th", { scope: "col", class: "upright" }, make("span", { class: "mono" }, place))));
  const rows = places.map((from, row) => make("tr", {}, make("th", { scope: "row", class: "mono" }, from), places.map((to, column) => {
    const cell = known.get(row * places.length + column);
    if (!cell) return make("td", { class: "warm untold" }, make("span", { class: "unseen" }, "not known"));
    const slow = cell.slow ? `, ${cell.links > 1 ? `${count(cell.slow)} ` : ""}slow` : "";
    const many = cell.links > 1 ? `, the worst of ${count(cell.links)} links` : "";
    const story = `${rate(cell.bytes_per_second)}, ${fine(cell.round_trip_ns)} round trip${many}${slow}`;
    return make("td", { class: `warm warm-${warmth(Math.max(1, cell.bytes_per_second), lowest, highest)}${cell.slow ? " slow" : ""}`, title: `${from} to ${to}: ${story}` },
      make("span", { "aria-hidden": "true" }, size(cell.bytes_per_second).replace(/(\d{2})\.\d/, "$1").replace(/ (\w).*/, " $1")), make("span", { class: "unseen" }, story));
  })));
  const caption = "What links carry a second, as transfers have shown";
  return make("div", { class: "scroll heat", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, rows)));
}

function links(main, _argument, refresh) {
  const group = make("select", { id: "group", onchange: () => refresh() }, make("option", { value: "" }, "–"));
  const map = make("section", { "aria-label": "Map of the links" });
  replace(main, heading("Links", make("div", { class: "controls" }, field("Group by", group))), map,
    make("p", { class: "note" }, "Each store tells of the 32 links that carry least of those that its transfers have used lately. A link is slow if it carries much less than most of its store, or takes much longer. hoplite topology probe measures all of them."));
  const legend = make("div", { class: "legend", "aria-hidden": "true" }, make("span", {}, "least ", [1, 4, 7, 10].map((step) => make("span", { class: `cell warm-${step}` })), " most   ", make("span", { class: "cell slow" }), " slow   ", make("span", { class: "cell untold" }), " not known"));
  return {
    ask: (ask) => ask(`/api/links?group=${encodeURIComponent(group.value)}`),
    show: (answer) => {
      const known = [...group.options].slice(1).map((option) => option.value);
      if (answer.keys.join() !== known.join()) {
        const chosen = group.value;
        group.replaceChildren(make("option", { value: "" }, "–"), ...answer.keys.map((key) => make("option", { value: key }, key)));
        group.value = answer.keys.includes(chosen) ? chosen : "";
      }
      const slow = answer.cells.reduce((sum, cell) => sum + cell.slow, 0);
      const all = answer.cells.reduce((sum, cell) => sum + cell.links, 0);
      const words = all === 0 ? `No transfers have shown a link yet to the ${count(answer.telling)} nodes that report.`
        : `${count(all)} links, ${count(slow)} of them slow.${answer.left_out ? ` ${count(answer.left_out)} more ${group.value ? "groups" : "nodes"} with fewer slow links are not shown.` : ""}`;
      replace(map, make("p", {}, words), ...(all === 0 ? [] : [heat(answer), legend]));
    },
  };
}

function events(main) {
  let latest = null;
  const only = make("select", { id: "only", onchange: () => draw_all() }, make("option", { value: "" }, "Everything"), make("option", { value: "troubles" }, "Troubles"));
  const list = make("section", { "aria-label": "Events" });
  replace(main, heading("Events", make("div", { class: "controls" }, field("Show", only))), list,
    make("p", { class: "note" }, "What this shard remembers: its latest 512 events about stores, 64 about strangers, and 256 losses. The daemon's log has them all."));
  function draw_all() {
    if (!latest) return;
    const rows = latest.events.filter((event) => !only.value || TROUBLES.has(event.kind)).map((event) => [
      make("time", { datetime: new Date(event.at_ms).toISOString() }, new Date(event.at_ms).toLocaleTimeString("en-GB")),
      make("span", { class: TROUBLES.has(event.kind) ? "tag bad" : "tag" }, words(event.kind)),
      make("span", { class: "mono" }, event.node ?? "–"),
      event.kind === "object-lost" ? make("span", { class: "mono id" }, event.text) : words(event.text),
    ]);
    replace(list, table("The newest first", [["When", ""], ["What", ""], ["Node", ""], ["", "text"]], rows, "Nothing has happened."));
  }
  return { ask: (ask) => ask("/api/events"), show: (answer) => { latest = answer; draw_all(); } };
}

function health(main) {
  const here = make("section", { "aria-label": "This shard" });
  const shards = make("section", { "aria-label": "All shards" });
  replace(main, heading("Health"), shards, here,
    make("p", { class: "note" }, "This page shows what one shard knows. With up to two shards each of them knows every object; with more, each knows its part."));
  return {
    show: (_, overview) => {
      const port = location.port;
      const rows = overview.shards.map((shard) => {
        const host = shard.name.slice(0, shard.name.lastIndexOf(":"));
        const state = overview.telling === 0 ? make("span", { class: "quiet" }, "no data") : shard.sessions === overview.telling ? make("span", { class: "tag good" }, "all stores") : make("span", { class: "tag bad" }, shard.sessions === 0 ? "no store" : "some stores");
        return [make("span", { class: "mono" }, shard.name), state, `${count(shard.sessions)} of ${count(overview.telling)}`, make("a", { href: `${location.protocol}//${host}${port ? `:${port}` : ""}/`, rel: "noreferrer" }, `${host}${port ? `:${port}` : ""}`)];
      });
      replace(shards, table("Shards, as the stores name them", [["Shard", ""], ["Reached by", ""], ["Sessions", "number"], ["Its dashboard, if it has one at this port", ""]], rows, "No store is connected."));
      const facts = [["Version", overview.version], ["Up for", duration(overview.uptime_ms)], ["Stores", `${count(overview.connected)} connected, ${count(overview.away)} away`], ["Objects", count(overview.objects)], ["Objects with too few copies", count(overview.under_replicated)], ["Inline bytes", size(overview.inline_bytes)], ["Transfers", count(overview.transfers)], ["Receivers that wait", count(overview.waiting)], ["Subscriptions", count(overview.subscriptions)], ["Deleted objects that are remembered", count(overview.tombstones)], ["Messages", `${count(overview.received_messages)} received, ${count(overview.sent_messages)} sent`], ["Batches in the queue", count(overview.queue)]];
      replace(here, table("This shard", [["", ""], ["", "text"]], facts, ""));
    },
  };
}

export const views = { overview, nodes, node, objects, prefixes, object, transfers, reduces, reduce, links, events, health };
