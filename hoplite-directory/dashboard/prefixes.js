// The view of objects by prefix: number, bytes, copies, ages and creators for each prefix.
import { count, duration, make, replace, size, table } from "./dom.js";
import { node_link } from "./node.js";

const COLUMNS = [["Prefix", ""], ["Objects", "number"], ["Bytes", "number"], ["Copies", "number"], ["Age", "number"], ["Last use", "number"], ["Creator", ""]];

/** Turns the hexadecimal digits of an id into its percent-encoding. */
export const percent = (digits) => digits.replace(/../g, "%$&");

/** Decodes the hexadecimal digits of an id; returns an empty string if the id is not UTF-8. */
export function text_of(digits) {
  try { return decodeURIComponent(percent(digits)); } catch { return ""; }
}

const since = (millis) => (millis === null ? "–" : duration(millis));

function ages({ newest_ms, oldest_ms }) {
  const [newest, oldest] = [since(newest_ms), since(oldest_ms)];
  return newest === oldest ? oldest : `${newest} to ${oldest}`;
}

function creators(group) {
  const links = group.creators.flatMap((name) => [", ", node_link(name)]).slice(1);
  return make("span", {}, links, group.more_creators ? " and more" : null);
}

const cells = (group, name) => [name, count(group.objects), size(group.bytes), count(group.copies), ages(group), since(group.unused_ms), creators(group)];

export function prefixes(main, argument) {
  const title = make("span", { class: "mono id" });
  const list = make("section", { "aria-label": "Objects by prefix" });
  replace(main,
    make("p", { class: "path" }, make("a", { href: `#objects/${argument}` }, "Objects"), argument ? [" / ", make("a", { href: "#prefixes" }, "All prefixes")] : null),
    make("div", { class: "heading" }, make("h1", {}, "Objects by prefix ", title)), list,
    make("p", { class: "note" }, "A prefix ends at the next / of the ids. Each object counts once in Bytes. Last use is the latest get from another node."));
  const link = (group) => (group.key === argument
    ? make("a", { href: `#objects/${group.key}` }, make("span", { class: "mono id" }, group.name), argument ? " and no further /" : "ids without /")
    : make("a", { href: `#prefixes/${group.key}`, class: "mono id" }, group.name));
  return {
    ask: (ask) => ask(`/api/prefixes?prefix=${encodeURIComponent(argument)}`),
    show: (page) => {
      title.textContent = page.prefix;
      const rows = page.groups.map((group) => cells(group, link(group)));
      if (page.more_groups > 0) rows.push(cells(page.rest, `${count(page.more_groups)} smaller prefixes`));
      const when = page.is_partial ? "counted so far" : `counted ${duration(page.counted_ms)} ago`;
      replace(list, table(`${count(page.total.objects)} objects, ${size(page.total.bytes)}, ${when}; most bytes first`, COLUMNS, rows, "No objects."));
    },
  };
}
