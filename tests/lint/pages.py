"""Checks the names in pages: files, functions, limits, links, and Rust programs.

Each step of the remote get in ARCHITECTURE.md names an item of its file and of the next step's
file.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:\.(?:rs|py|proto|txt|json|js|sh|toml|md)|/))`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
SOURCE = r"`([\w./-]+\.(?:rs|py|proto))`"
ITEM = r"`([A-Za-z_][\w:.]*)`"
PLACED = (
    re.compile(rf"(?P<file>{SOURCE}) (?P<item>{ITEM})"),
    re.compile(rf"(?P<item>{ITEM}) in (?P<file>{SOURCE})"),
)
CONSTANT = re.compile(r"`((?:\w+::)+)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")


# Records may name files that no longer exist.
RECORDS = {
    "docs/dev/log.md",
    "docs/dev/suites.md",
    "docs/dev/benchmarks.md",
    "docs/dev/python-benchmarks.md",
}
RUST = re.compile(r"^```rust\n(.*?)^```", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\d+\. `([\w./-]+)`(?:[^\n]|\n {3})*", re.MULTILINE)
ARROW = re.compile(r"→ `(\w+)`$")


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = [f"/{file}" for file in listed.split("\0") if file and (ROOT / file).exists()]
    wrong, named, items = [], 0, 0
    for page in [
        "ARCHITECTURE.md",
        *sorted({str(path.relative_to(ROOT)) for path in ROOT.glob("docs/dev/*.md")} - RECORDS),
    ]:
        text = (ROOT / page).read_text()
        places, parts = sorted(set(NAMED.findall(text))), sorted(items_named(text))
        wrong += [
            f"{page} names {place}, which is not there"
            for place in places
            if not is_there(place, files)
        ]
        wrong += [
            f"{page} names {item} in {file}, which has none"
            for file, item in parts
            if not has(file, item, files)
        ]
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
        wrong += [
            f"{page} shows Rust that is in no example of hoplite-client"
            for code in RUST.findall(text)
            if not is_example(code)
        ]
        for modules, name in sorted(set(CONSTANT.findall(text))):
            if not any(set(modules.split("::")) - {""} <= place for place in defined.get(name, [])):
                wrong.append(f"{page} names {modules}{name}, which is not defined")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(
            f"ARCHITECTURE.md and the pages for developers name {named} files and directories and {items} items of them,"
        )
        print(f"{len(pages)} pages link to others or name constants: all are there")
    return 1 if wrong else 0


def anchors(text: str) -> set[str]:
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {
        re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower())) for heading in headings
    }


def is_example(code: str) -> bool:
    return any(code in path.read_text() for path in ROOT.glob("hoplite-client/examples/*.rs"))


def lost_on_the_walk(text: str, files: list[str]) -> list[str]:
    steps = [(match[1], ARROW.search(match[0])) for match in STEP.finditer(text)]
    wrong = []
    for (file, arrow), (following, _) in zip(steps, steps[1:], strict=False):
        if arrow is None:
            wrong.append(
                f"ARCHITECTURE.md: the step in {file} has no arrow to the one in {following}"
            )
        else:
            missing = [place for place in (file, following) if not has(place, arrow[1], files)]
            wrong += [
                f"ARCHITECTURE.md: the walk names {arrow[1]}, which is not in {place}"
                for place in missing
            ]
    return wrong or ([] if len(steps) > 1 else ["ARCHITECTURE.md has no walk"])


def items_named(text: str) -> set[tuple[str, str]]:
    found = (match for pattern in PLACED for match in pattern.finditer(text))
    return {(match["file"].strip("`"), match["item"].strip("`")) for match in found}


def has(file: str, item: str, files: list[str]) -> bool:
    name = re.compile(rf"\b{re.split('::|[.]', item)[-1]}\b")
    return any(
        name.search((ROOT / known[1:]).read_text()) for known in files if known.endswith(f"/{file}")
    )


def constants(files: list[str]) -> dict[str, list[set[str]]]:
    found: dict[str, list[set[str]]] = {}
    for file in files:
        if file.endswith(".rs"):
            for name in re.findall(r"\bconst ([A-Z][A-Z0-9_]+):", (ROOT / file[1:]).read_text()):
                found.setdefault(name, []).append(set(re.split("[/.]", file)))
    return found


def is_there(place: str, files: list[str]) -> bool:
    """Returns `True` for a path, the end of a path, or a directory."""
    if place.endswith("/"):
        return any(f"/{place}" in file for file in files)
    return any(file.endswith(f"/{place}") for file in files)


if __name__ == "__main__":
    sys.exit(main())
