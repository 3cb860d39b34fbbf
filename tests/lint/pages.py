"""Checks what pages name: files and functions in ARCHITECTURE.md, the constants of limits, and files to which any page links."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A path, or the end of one where the sentence says in which directory it is.
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:\.(?:rs|py|proto|txt|json|js|sh|toml|md)|/))`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# `put` in `node/put.rs`, or the other way round.
SOURCE = r"`([\w./-]+\.(?:rs|py|proto))`"
ITEM = r"`([A-Za-z_][\w:.]*)`"
PLACED = (re.compile(rf"(?P<file>{SOURCE}) (?P<item>{ITEM})"), re.compile(rf"(?P<item>{ITEM}) in (?P<file>{SOURCE})"))
# A constant with its module, as in `session::MAX_REFUSED`.
CONSTANT = re.compile(r"`((?:\w+::)+)([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`")


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = [f"/{file}" for file in listed.split("\0") if file and (ROOT / file).exists()]
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    named = sorted(set(NAMED.findall(architecture)))
    wrong = [f"ARCHITECTURE.md names {place}, which is not there" for place in named if not is_there(place, files)]
    items = sorted(items_named(architecture))
    wrong += [f"ARCHITECTURE.md names {item} in {file}, which has none" for file, item in items if not has(file, item, files)]
    pages = [Path(file.removeprefix("/")) for file in files if file.endswith(".md")]
    defined = constants(files)
    for page in pages:
        text = (ROOT / page).read_text()
        for link in sorted(set(LINK.findall(text))):
            if "://" not in link and not (ROOT / page.parent / link).exists():
                wrong.append(f"{page} links to {link}, which is not there")
        for modules, name in sorted(set(CONSTANT.findall(text))):
            if not any(set(modules.split("::")) - {""} <= place for place in defined.get(name, [])):
                wrong.append(f"{page} names {modules}{name}, which is not defined")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"ARCHITECTURE.md names {len(named)} files and directories and {len(items)} items of them,")
        print(f"{len(pages)} pages link to others or name constants: all are there")
    return 1 if wrong else 0


def items_named(text: str) -> set[tuple[str, str]]:
    """The files that are named together with something that they have, and that."""
    found = (match for pattern in PLACED for match in pattern.finditer(text))
    return {(match["file"].strip("`"), match["item"].strip("`")) for match in found}


def has(file: str, item: str, files: list[str]) -> bool:
    """Whether one of the files with this path has the last part of such a name."""
    name = re.compile(rf"\b{re.split('::|[.]', item)[-1]}\b")
    return any(name.search((ROOT / known[1:]).read_text()) for known in files if known.endswith(f"/{file}"))


def constants(files: list[str]) -> dict[str, list[set[str]]]:
    """The constants of the Rust sources, with the parts of the paths of the files that define them."""
    found: dict[str, list[set[str]]] = {}
    for file in files:
        if file.endswith(".rs"):
            for name in re.findall(r"\bconst ([A-Z][A-Z0-9_]+):", (ROOT / file[1:]).read_text()):
                found.setdefault(name, []).append(set(re.split("[/.]", file)))
    return found


def is_there(place: str, files: list[str]) -> bool:
    """Whether a file has this path or ends with it, or lies in this directory."""
    if place.endswith("/"):
        return any(f"/{place}" in file for file in files)
    return any(file.endswith(f"/{place}") for file in files)


if __name__ == "__main__":
    sys.exit(main())
