// Draws the transfers of one object as trees. The receiver with the largest subtree stays in its
// sender's column; the sender's other receivers get the next column to the right. So a tree of n
// copies needs at most log2(n) + 1 columns.
import { count, draw, duration, make, part, rate, size, table, words } from "./dom.js";

const COLUMN = 14;
const ROW = 28;
const RADIUS = 4;

/**
 * Links each copy to its current sender, else to the last one that the shard remembers. Returns the
 * roots of the trees.
 */
function link(tree) {
  const past = new Map();
  for (const grant of tree.grants) if (grant.outcome === "complete") past.set(grant.receiver, grant);
  const nodes = new Map();
  for (const copy of tree.copies) {
    const grant = copy.sender ? null : past.get(copy.node);
    nodes.set(copy.node, { ...copy, from: copy.sender ?? grant?.sender ?? null, live: Boolean(copy.sender), reason: copy.reason ?? grant?.reason ?? null, children: [] });
  }
  const roots = [];
  for (const node of nodes.values()) {
    const parent = node.from === null ? null : nodes.get(node.from);
    if (parent && !isBelow(nodes, parent, node)) parent.children.push(node);
    else roots.push(node);
    node.linked = true;
  }
  return roots;
}

/**
 * Returns `true` if `start` is `node` or got its bytes through `node`. Then a link from `start` to
 * `node` would close a cycle, which senders of different times can form.
 */
function isBelow(nodes, start, node) {
  for (let at = start, steps = 0; at && steps <= nodes.size; at = at.linked || at === start ? nodes.get(at.from) : null, steps += 1) {
    if (at === node) return true;
  }
  return false;
}

/** Returns the copies in row order, each with its column and the columns of lines past its row. */
function lay_out(roots) {
  const order = [];
  const measure = [...roots];
  for (let at = 0; at < measure.length; at += 1) measure.push(...measure[at].children);
  for (const node of measure.reverse()) node.weight = 1 + node.children.reduce((sum, child) => sum + child.weight, 0);
  // The entry that was pushed last gets the next row, so the largest branch comes last.
  const stack = [];
  const by_weight = (one, other) => other.weight - one.weight || (one.node < other.node ? -1 : 1);
  for (const root of [...roots].sort(by_weight).reverse()) stack.push({ node: root, column: 0, passing: [], parent: null, depth: 0 });
  while (stack.length > 0) {
    const entry = stack.pop();
    order.push(entry);
    const { node, column, passing, depth } = entry;
    const children = [...node.children].sort(by_weight);
    const [main, ...branches] = children;
    if (!main) continue;
    stack.push({ node: main, column, passing, parent: column, depth: depth + 1 });
    for (const branch of branches) stack.push({ node: branch, column: column + 1, passing: [...passing, column], parent: column, depth: depth + 1 });
  }
  return order;
}

function graph({ node, column, passing, parent }, columns) {
  const x = (at) => at * COLUMN + COLUMN / 2 + 1;
  const middle = ROW / 2;
  const svg = draw("svg", { width: columns * COLUMN + 2, height: ROW, "aria-hidden": "true" });
  for (const at of passing) svg.append(draw("path", { d: `M${x(at)} 0V${ROW}`, class: "edge" }));
  if (parent !== null) {
    const kind = node.live ? "edge live" : "edge";
    const d = parent === column ? `M${x(column)} 0V${middle}` : `M${x(parent)} 0Q${x(parent)} ${middle} ${x(column)} ${middle}`;
    svg.append(draw("path", { d, class: kind }));
  }
  const live = node.children.some((child) => child.live) ? "edge live" : "edge";
  if (node.children.length > 0) svg.append(draw("path", { d: `M${x(column)} ${middle}V${ROW}`, class: live }));
  svg.append(draw("circle", { cx: x(column), cy: middle, r: RADIUS, class: `dot ${node.state}` }));
  return svg;
}

function progress(node, bytes) {
  if (node.state === "complete") return make("span", { class: "done" }, "complete");
  if (node.valid_bytes === null) return make("span", { class: "quiet" }, node.state === "producing" ? "being written" : "under way");
  const share = part(node.valid_bytes, bytes);
  const label = `${Math.floor(100 * share)}%, ${size(node.valid_bytes)} of ${size(bytes)}`;
  const bar = make("span", { class: "bar-of", role: "img", "aria-label": label, title: label });
  const piece = make("span", { class: "valid" });
  piece.style.width = `${100 * share}%`;
  bar.append(piece);
  return make("span", { class: "with-bar" }, bar, make("span", { class: "number" }, `${Math.floor(100 * share)}%`));
}

/** Returns all copies in row order, and a table of the first `limit` that also draws the trees. */
export function trees(tree, limit) {
  const order = lay_out(link(tree));
  const shown = order.slice(0, limit);
  const columns = Math.max(1, ...shown.map((entry) => entry.column + 1));
  const bytes = tree.object?.size_bytes ?? 0;
  const rows = shown.map((entry) => {
    const { node, depth } = entry;
    return [
      make("span", { class: "branch" }, graph(entry, columns), make("span", { class: "mono" }, node.node), node.pinned ? make("span", { class: "tag" }, "pinned") : null, node.away ? make("span", { class: "tag bad" }, "away") : null),
      make("span", { class: "mono" }, node.from ?? "–"),
      String(depth),
      progress(node, bytes),
      node.live ? rate(node.rate) : "–",
      node.reason ? words(node.reason) : node.live ? make("span", { class: "quiet" }, "not known here") : "–",
      node.age_ms === null ? "–" : duration(node.age_ms),
    ];
  });
  const live = order.filter((entry) => entry.node.live).length;
  const depth = order.reduce((most, entry) => Math.max(most, entry.depth), 0);
  const caption = `${count(order.length)} copies: ${count(live)} on their way, ${count(order.filter((entry) => entry.node.state === "complete").length)} complete; the longest chain has ${count(depth)} hops`;
  return { order, element: table(caption, [["Node", "tree"], ["From", ""], ["Hops", "number"], ["Progress", "wide"], ["Rate", "number"], ["Why this sender", ""], ["Age", "number"]], rows, "No copies.") };
}
