// The page: which view is shown, and when it asks again. Asks only while somebody can see it, and one thing at a time.
import { count, duration, make, rate, replace, size } from "./dom.js";
import { views } from "./views.js";

const INTERVAL_MS = 2000;
/** How long an answer may take. */
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

/** What the shard answers to a question. */
export async function ask(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("log in first");
  }
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
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
    shown.show(answer, overview);
    trouble.hidden = true;
  } catch (error) {
    if (mine !== round) return;
    const why = error.name === "TimeoutError" ? "the shard takes too long" : error.message;
    const text = `No answer: ${why}. What is shown may be old; asking again.`;
    // Said once, not every two seconds.
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
  const make_view = views[name] ?? views.nodes;
  const title = views[name] ? name : "nodes";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${title}`) link.setAttribute("aria-current", "page");
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
// Where there is no login, there is no page to log in.
fetch("/login", { redirect: "manual" }).then((answer) => (document.getElementById("leave").hidden = answer.type === "opaqueredirect"), () => {});
open();
