"""Checks the names in pages: files, functions, constants of limits, links, and Rust programs.

Files and functions are checked in ARCHITECTURE.md, docs/reliability.md and the pages for developers, except records
of runs.
ARCHITECTURE.md has
a walk from file to file: the name after each arrow must occur in the file of its step and in the next one.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# # A path, or its end if the sentence names the directory.
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:\.(?:rs|py|proto|txt|json|js|sh|toml|md)|/))`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
# # `put` in `node/put.rs`, or in reverse order.
SOURCE = r"`([\w./-]+\.(?:rs|py|proto))`"
ITEM = r"`([A-Za-z_][\w:.]*)`"
PLACED = (re.compile(rf"(?P<file>{SOURCE}) (?P<item>{ITEM})"), re.compile(rf"(?P<item>{ITEM}) in (?P<file>{SOURCE})"))
# A constant with its module, as in `session::MAX_REFUSED`.
CONSTANT = re.compile(r"`((?:\w+::)+)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")


# # Records of runs, which may name files of other projects and of the past.
RECORDS = {"docs/dev/log.md", "docs/dev/suites.md", "docs/dev/benchmarks.md", "docs/dev/python-benchmarks.md"}
# # A Rust program in a page.
RUST = re.compile(r"^```rust\n(.*?)^```", re.MULTILINE | re.DOTALL)
# # A step of a walk, with the name that leads to the next step.
STEP = re.compile(r"^\d+\. `([\w./-]+)`(?:[^\n]|\n {3})*", re.MULTILINE)
ARROW = re.compile(r"→ `(\w+)`$")


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = [f"/{file}" for file in listed.split("\0") if file and (ROOT / file).exists()]
    wrong, named, items = [], 0, 0
    for page in ["ARCHITECTURE.md", "docs/reliability.md", *sorted({str(path.relative_to(ROOT)) for path in ROOT.glob("docs/dev/*.md")} - RECORDS)]:
        text = (ROOT / page).read_text()
        places, parts = sorted(set(NAMED.findall(text))), sorted(items_named(text))
        wrong += [f"{page} names {place}, which is not there" for place in places if not is_there(place, files)]
        wrong += [f"{page} names {item} in {file}, which has none" for file, item in parts if not has(file, item, files)]
        named, items = named + len(places), items + len(parts)
    wrong += lost_on_the_walk((ROOT / "ARCHITECTURE.md").read_text(), files)
    pages = [Path(file.removeprefix("/")) for file in files if file.endswith(".md")]
    defined = constants(files)
    for page in pages:
        text = (ROOT / page).read_text()
        for link, anchor in sorted(set(LINK.findall(text))):
            target = ROOT / page.parent / link if link else ROOT / page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists():
                wrong.append(f"{page} links to {link}, which is not there")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                wrong.append(f"{page} links to {link}#{anchor}, and there is no such heading")
        wrong += [f"{page} shows Rust that is in no example of hoplite-client" for code in RUST.findall(text) if not is_example(code)]
        for modules, name in sorted(set(CONSTANT.findall(text))):
            if not any(set(modules.split("::")) - {""} <= place for place in defined.get(name, [])):
                wrong.append(f"{page} names {modules}{name}, which is not defined")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"ARCHITECTURE.md and the pages for developers name {named} files and directories and {items} items of them,")
        print(f"{len(pages)} pages link to others or name constants: all are there")
    return 1 if wrong else 0


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings}


def is_example(code: str) -> bool:
    """Returns `True` if a compiled file of examples contains these lines."""
    return any(code in path.read_text() for path in ROOT.glob("hoplite-client/examples/*.rs"))


def lost_on_the_walk(text: str, files: list[str]) -> list[str]:
    """The steps of a walk whose names do not lead to the next step."""
    steps = [(match[1], ARROW.search(match[0])) for match in STEP.finditer(text)]
    wrong = []
    for (file, arrow), (following, _) in zip(steps, steps[1:], strict=False):
        if arrow is None:
            wrong.append(f"ARCHITECTURE.md: the step in {file} has no arrow to the one in {following}")
        else:
            missing = [place for place in (file, following) if not has(place, arrow[1], files)]
            wrong += [f"ARCHITECTURE.md: the walk names {arrow[1]}, which is not in {place}" for place in missing]
    return wrong or ([] if len(steps) > 1 else ["ARCHITECTURE.md has no walk"])


def items_named(text: str) -> set[tuple[str, str]]:
    """The files that a page names together with an item, and the item."""
    found = (match for pattern in PLACED for match in pattern.finditer(text))
    return {(match["file"].strip("`"), match["item"].strip("`")) for match in found}


def has(file: str, item: str, files: list[str]) -> bool:
    """Returns `True` if one of the files with this path contains the last part of the name."""
    name = re.compile(rf"\b{re.split('::|[.]', item)[-1]}\b")
    return any(name.search((ROOT / known[1:]).read_text()) for known in files if known.endswith(f"/{file}"))


def constants(files: list[str]) -> dict[str, list[set[str]]]:
    """The constants of the Rust sources, with the paths of their files in parts."""
    found: dict[str, list[set[str]]] = {}
    for file in files:
        if file.endswith(".rs"):
            for name in re.findall(r"\bconst ([A-Z][A-Z0-9_]+):", (ROOT / file[1:]).read_text()):
                found.setdefault(name, []).append(set(re.split("[/.]", file)))
    return found


def is_there(place: str, files: list[str]) -> bool:
    """Returns `True` if a file has this path or ends with it, or lies in this directory."""
    if place.endswith("/"):
        return any(f"/{place}" in file for file in files)
    return any(file.endswith(f"/{place}") for file in files)


if __name__ == "__main__":
    sys.exit(main())
