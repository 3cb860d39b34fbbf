"""Checks the levels of hoplite-core in ARCHITECTURE.md, and the cycles of files in all crates.

`cycles.txt` lists the allowed cycles, separated by blank lines. It may only shrink.
"""

import re
import sys
import tomllib
from pathlib import Path

from imports import Sources, cycles

ROOT = Path(__file__).resolve().parents[2]
LAYERED = "hoplite-core"
ROW = re.compile(r"^\| (\d+) \| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
HEADING = f"| level | modules of `{LAYERED}/src/` |"


def main(root: Path = ROOT) -> int:
    levels = levels_of((root / "ARCHITECTURE.md").read_text())
    sources = Sources(crate_roots(root))
    wrong = wrong_imports(sources, root / LAYERED / "src", levels) + wrong_cycles(sources, root)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(
            f"{len(sources.modules)} files: imports go down the {max(levels.values())} levels, and no cycle of files is new"
        )
    return 1 if wrong else 0


def levels_of(architecture: str) -> dict[str, int]:
    table = architecture.partition(HEADING)[2].partition("\n\n")[0]
    rows = ROW.findall(table)
    if not rows:
        raise SystemExit(f"ARCHITECTURE.md has no table that begins with {HEADING}")
    return {module: int(level) for level, modules in rows for module in re.findall(r"\w+", modules)}


def crate_roots(root: Path) -> dict[str, Path]:
    roots: dict[str, Path] = {}
    for member in tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["members"]:
        package = tomllib.loads((root / member / "Cargo.toml").read_text())
        name = package.get("lib", {}).get("name") or package["package"]["name"].replace("-", "_")
        for file, crate in (("lib.rs", name), ("main.rs", f"{name}_main")):
            if (root / member / "src" / file).exists():
                roots[crate] = root / member / "src" / file
    return roots


def wrong_imports(sources: Sources, source: Path, levels: dict[str, int]) -> list[str]:
    wrong = []
    for module in sources.modules.values():
        if not module.file.is_relative_to(source):
            continue
        if len(module.path) == 2 and module.path[1] not in levels:
            wrong.append(f"{module.file.relative_to(source)} has no level in ARCHITECTURE.md")
        if len(module.path) == 1:
            continue
        own = module.path[1]
        for path in sorted(set(module.imports)):
            if path[0] != module.path[0]:
                continue
            target = sources.file_of(path)
            named = {path[1]} if len(path) > 1 else set()
            if target is not None and target.is_relative_to(source):
                named.add(target.relative_to(source).parts[0].removesuffix(".rs"))
            for other in sorted(named & levels.keys() - {own}):
                if levels[other] >= levels.get(own, 0):
                    direction = "up" if levels[other] > levels.get(own, 0) else "sideways"
                    name = "::".join(path[1:])
                    wrong.append(
                        f"{module.file.relative_to(source)} imports {direction}: {name}, of `{other}`"
                    )
    return wrong


def wrong_cycles(sources: Sources, root: Path) -> list[str]:
    allowed_file = root / "tests/lint/cycles.txt"
    text = allowed_file.read_text() if allowed_file.exists() else ""
    allowed = [set(group.split()) for group in text.split("\n\n")]
    found = [{str(file.relative_to(root)) for file in group} for group in cycles(sources.imports())]
    wrong = [
        f"these files import each other in a cycle: {', '.join(sorted(group))}"
        for group in found
        if not any(group <= known for known in allowed)
    ]
    in_cycles = set().union(*found)
    gone = sorted(set().union(*allowed) - in_cycles)
    return wrong + [
        f"{file} is in no cycle any more: remove it from tests/lint/cycles.txt" for file in gone
    ]


if __name__ == "__main__":
    sys.exit(main())
