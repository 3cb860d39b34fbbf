// Shows a view, and refreshes it two seconds after each answer unless the page is hidden or paused.
import { count, duration, make, rate, replace, size } from "./dom.js";
import { banner } from "./node.js";
import { views } from "./views.js";

const INTERVAL_MS = 2000;
/** The time limit of a request. */
const PATIENCE_MS = 8000;

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
const news = document.getElementById("news");
const pause = document.getElementById("pause");

let view = null;
let timer = 0;
let round = 0;
let paused = false;
let wasConnected = null;

/** The latest answers by path, with their ETags. The shard does not resend an unchanged answer. */
const known = new Map();
const MAX_KNOWN = 16;

/** Requests a path from the shard and returns the answer. Opens the login page if required. */
export async function ask(path) {
  const before = known.get(path);
  const headers = before ? { "If-None-Match": before.tag } : {};
  const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store", headers });
  if (response.status === 304) return before.answer;
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("log in first");
  }
  if (!response.ok) throw new Error((await response.text()).trim());
  const answer = await response.json();
  known.delete(path);
  known.set(path, { tag: response.headers.get("etag"), answer });
  if (known.size > MAX_KNOWN) known.delete(known.keys().next().value);
  return answer;
}

function facts(overview) {
  const used = overview.capacity_bytes - overview.free_bytes;
  const fact = (name, value, note) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, note ? make("small", {}, ` ${note}`) : null));
  document.getElementById("cluster").textContent = overview.cluster;
  replace(
    document.getElementById("facts"),
    fact("Nodes", count(overview.connected), overview.away ? `${overview.away} away` : null),
    fact("Memory", overview.telling ? size(used) : "–", overview.telling ? `of ${size(overview.capacity_bytes)}` : null),
    fact("Objects", count(overview.objects)),
    fact("Transfers", count(overview.transfers), overview.waiting ? `${count(overview.waiting)} wait` : null),
    fact("Receiving", rate(overview.receive_rate)),
    fact("Reduces", count(overview.reduces)),
    fact("Up", duration(overview.uptime_ms)),
  );
  if (wasConnected !== null && wasConnected !== overview.connected) {
    news.textContent = `${overview.connected} nodes are connected now`;
  }
  wasConnected = overview.connected;
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++round;
  const shown = view;
  try {
    const [overview, answer] = await Promise.all([ask("/api/overview"), shown.ask ? shown.ask(ask) : null]);
    if (mine !== round) return;
    facts(overview);
    banner(document.getElementById("problems"), overview.problems);
    shown.show(answer, overview);
    trouble.hidden = true;
  } catch (error) {
    if (mine !== round) return;
    const why = error.name === "TimeoutError" ? "the shard takes too long" : error.message;
    const text = `No answer: ${why}. What is shown may be old; asking again.`;
    // Screen readers announce each change of this text, so an equal text stays.
    if (trouble.hidden || trouble.textContent !== text) trouble.textContent = text;
    trouble.hidden = false;
  }
  plan();
}

function plan() {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(refresh, INTERVAL_MS);
}

function open() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  const make_view = views[name] ?? views.overview;
  const title = views[name] ? name : "overview";
  const parent = { node: "#nodes", object: "#objects", prefixes: "#objects", reduce: "#reduces" }[title];
  for (const link of document.querySelectorAll("nav a")) {
    const target = link.getAttribute("href");
    if (target === `#${title}`) link.setAttribute("aria-current", "page");
    else if (target === parent) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  view = make_view(main, rest.join("/"), refresh);
  document.title = `${title[0].toUpperCase()}${title.slice(1)} – Hoplite`;
  refresh();
}

pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Resume" : "Pause";
  if (paused) plan();
  else refresh();
});
document.addEventListener("visibilitychange", () => (document.hidden || paused ? plan() : refresh()));
window.addEventListener("hashchange", open);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
// A shard without login redirects /login. Then the button to log out stays hidden.
fetch("/login", { redirect: "manual" }).then((answer) => (document.getElementById("leave").hidden = answer.type === "opaqueredirect"), () => {});
open();
