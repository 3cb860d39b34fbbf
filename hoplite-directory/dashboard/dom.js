// Creates elements and formats numbers. Cluster data enters the page as text, never as markup.

/** Creates an element with attributes, listeners (`onclick`) and children. Strings become text. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Creates an SVG element. */
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Bytes with a unit: 1.5 MiB. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(1)} ${units[unit]}`;
}

/** Bytes per second with a unit; a dash if the rate is zero or unknown. */
export const rate = (bytes) => (bytes ? `${size(bytes)}/s` : "–");

/** A count, with its digits in groups. */
export const count = (number) => number.toLocaleString("en-US");

/** The fraction `some / all`, limited to 0 to 1. */
export const part = (some, all) => (all > 0 ? Math.min(1, Math.max(0, some / all)) : 0);

/** A length of time: 3d 4h. */
export function duration(millis) {
  const seconds = Math.floor(millis / 1000);
  if (millis < 1000) return `${Math.round(millis)} ms`;
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${Math.floor((seconds % 3600) / 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${Math.floor((seconds % 86400) / 3600)}h`;
}

/** A length of time that is given in nanoseconds: 1.5 ms. */
export const fine = (nanos) => (nanos < 1e6 ? `${(nanos / 1e3).toFixed(0)} µs` : `${(nanos / 1e6).toFixed(1)} ms`);

/** A name from the shard, such as a reason or an outcome, with spaces instead of hyphens. */
export const words = (name) => name.replaceAll("-", " ");

/** A bar that divides a node's arena into pinned, evictable, growing and reserved bytes. */
export function memory(load) {
  if (!load) return make("span", { class: "quiet" }, "no data");
  const used = load.capacity_bytes - load.free_bytes;
  const label = `${size(used)} of ${size(load.capacity_bytes)} in use, ${size(load.pinned_bytes)} pinned`;
  const bar = make("span", { class: "bar-of", role: "img", "aria-label": label, title: label });
  // Objects that are being written or received are neither pinned nor evictable.
  const growing = Math.max(0, used - load.pinned_bytes - load.evictable_bytes - load.reserved_bytes);
  for (const [kind, bytes] of [["pinned", load.pinned_bytes], ["evictable", load.evictable_bytes], ["growing", growing], ["reserved", load.reserved_bytes]]) {
    const piece = make("span", { class: kind });
    piece.style.width = `${100 * part(bytes, load.capacity_bytes)}%`;
    bar.append(piece);
  }
  return bar;
}

/** A table: columns are [title, class], rows are lists of cells. */
export function table(caption, columns, rows, empty) {
  const head = columns.map(([title, kind]) => make("th", { scope: "col", class: kind }, title));
  const body = rows.map((cells) =>
    make("tr", {}, cells.map((cell, index) => make(index === 0 ? "th" : "td", { class: columns[index][1], scope: index === 0 ? "row" : undefined }, cell)))
  );
  if (rows.length === 0) body.push(make("tr", {}, make("td", { class: "quiet", colspan: columns.length }, empty)));
  return make("div", { class: columns.length > 2 ? "scroll" : "scroll narrow", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), columns.some(([title]) => title) ? make("thead", {}, make("tr", {}, head)) : null, make("tbody", {}, body)));
}

/**
 * Replaces the children of `place`, and keeps the focus and the scroll positions. The focus goes to
 * the new element with the same id, link or label; of several, to the one at the same position.
 */
export function replace(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const mark = focused && ["id", "href", "aria-label"].find((name) => focused.getAttribute(name));
  const value = mark && focused.getAttribute(mark);
  const alike = () => (mark ? [...place.querySelectorAll(`[${mark}]`)].filter((one) => one.getAttribute(mark) === value) : []);
  const position = alike().indexOf(focused);
  const scroll = [...place.querySelectorAll(".scroll")].map((region) => [region.scrollLeft, region.scrollTop]);
  place.replaceChildren(...children.filter((child) => child !== null));
  [...place.querySelectorAll(".scroll")].forEach((region, index) => {
    if (scroll[index]) [region.scrollLeft, region.scrollTop] = scroll[index];
  });
  (alike()[position] ?? alike()[0])?.focus({ preventScroll: true });
}
