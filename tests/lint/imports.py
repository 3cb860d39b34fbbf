"""Finds the imports between Rust files, for `levels.py`, without tests.

A file imports the files that define the items it names. A `pub use` of its submodules is no import.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Names = tuple[str, ...]
USE = re.compile(r"(?P<visible>pub(?:\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
MODULE = re.compile(
    r"(?P<test>#\[cfg\((?:all\()?(?:test|loom|fuzzing)[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*)?(?:pub(?:\([^)]*\))?\s+)?\bmod\s+(?P<name>\w+)\s*(?P<end>[;{])"
)
INLINE = re.compile(r"\b((?:crate|super|self|hoplite_\w+)(?:::\w+)+)")
VISIBILITY = re.compile(r"\bpub\(in [\w:]+\)")
ITEM = r"(?:struct|enum|trait|fn|const|static|type|union|macro_rules!|mod)"
MAX_PASSES = 8
QUOTED = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.|[^\'\\])\'', re.DOTALL
)


@dataclass
class Module:
    file: Path
    crate: str
    path: Names
    code: str
    passed_on: dict[str, Names] = field(default_factory=dict)
    """Items that the module re-exports, by their exported names."""
    passed_on_in_full: list[Names] = field(default_factory=list)
    """Modules of which it re-exports everything."""
    imports: list[Names] = field(default_factory=list)


class Sources:
    def __init__(self, crates: dict[str, Path]) -> None:
        self.modules: dict[Names, Module] = {}
        for crate, root in crates.items():
            self._add(root, crate, (crate,), root.parent)
        for module in self.modules.values():
            self._read_uses(module)

    def imports(self) -> dict[Path, set[Path]]:
        found: dict[Path, set[Path]] = {}
        for module in self.modules.values():
            targets = (self.file_of(path) for path in module.imports)
            found[module.file] = {
                target for target in targets if target is not None and target != module.file
            }
        return found

    def _add(self, file: Path, crate: str, path: Names, beside: Path) -> None:
        code = without_tests(without_text(file.read_text()))
        self.modules[path] = Module(file, crate, path, code)
        for match in MODULE.finditer(code):
            if match["end"] == ";" and not match["test"]:
                name = match["name"]
                places = (beside / f"{name}.rs", beside / name / "mod.rs")
                part = next((place for place in places if place.exists()), None)
                if part is not None:
                    self._add(part, crate, (*path, name), beside / name)

    def _read_uses(self, module: Module) -> None:
        for match in USE.finditer(module.code):
            for path, name in use_tree(match["tree"]):
                full = self._absolute(module, path)
                if full is None:
                    continue
                if match["visible"]:
                    if name == "*":
                        module.passed_on_in_full.append(full[:-1])
                    else:
                        module.passed_on[name] = full
                    if full[: len(module.path)] == module.path:
                        continue
                module.imports.append(full)
        for match in INLINE.finditer(VISIBILITY.sub("", USE.sub("", module.code))):
            full = self._absolute(module, tuple(match[1].split("::")))
            if full is not None:
                module.imports.append(full)

    def _absolute(self, module: Module, path: Names) -> Names | None:
        first = path[0]
        if first == "crate":
            return (module.crate, *path[1:])
        if first in ("self", "super"):
            base = module.path
            rest = path
            while rest and rest[0] in ("self", "super"):
                base = base[:-1] if rest[0] == "super" else base
                rest = rest[1:]
            return (*base, *rest)
        if (first,) in self.modules:
            return path
        if (*module.path, first) in self.modules:
            return (*module.path, *path)
        return None

    def file_of(self, path: Names) -> Path | None:
        """The file that defines an item; if unclear, its module's file."""
        length = self._known(path)
        return self._definition(path, 0) or (
            self.modules[path[:length]].file if length > 0 else None
        )

    def _known(self, path: Names) -> int:
        return next(
            (length for length in range(len(path), 0, -1) if path[:length] in self.modules), 0
        )

    def _definition(self, path: Names, depth: int) -> Path | None:
        length = self._known(path)
        if length == 0 or depth > MAX_PASSES:
            return None
        module = self.modules[path[:length]]
        if length == len(path):
            return module.file
        name, rest = path[length], path[length + 1 :]
        if name in module.passed_on:
            return self._definition((*module.passed_on[name], *rest), depth + 1)
        if re.search(rf"\b{ITEM}\s+{re.escape(name)}\b", module.code):
            return module.file
        found = (
            self._definition((*whole, name, *rest), depth + 1) for whole in module.passed_on_in_full
        )
        return next((file for file in found if file is not None), None)


def without_text(source: str) -> str:
    return QUOTED.sub(" ", source)


def without_tests(code: str) -> str:
    while (
        match := next((m for m in MODULE.finditer(code) if m["test"] and m["end"] == "{"), None)
    ) is not None:
        depth, end = 1, match.end()
        while depth > 0 and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        code = code[: match.start()] + code[end:]
    return code


def use_tree(tree: str) -> Iterator[tuple[Names, str]]:
    tree = re.sub(r"\s+", " ", tree).strip()
    head, brace, rest = tree.partition("{")
    prefix = tuple(part for part in head.split("::") if part.strip())
    prefix = tuple(part.strip() for part in prefix)
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = tuple(part.strip() for part in path.split("::") if part.strip())
        if parts:
            yield parts, (alias or parts[-1]).strip()
        return
    for part in split(rest.rpartition("}")[0]):
        if part.split(" as ")[0].strip() == "self":
            alias = part.partition(" as ")[2].strip()
            yield prefix, alias or prefix[-1]
        else:
            for path, name in use_tree(part):
                yield (*prefix, *path), name


def split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    if text[start:].strip():
        yield text[start:].strip()


def cycles(imports: dict[Path, set[Path]]) -> list[list[Path]]:
    """Groups of files that import each other (Tarjan 1972), the largest first."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    on_stack: set[Path] = set()
    found: list[list[Path]] = []
    for root in sorted(imports):
        if root in index:
            continue
        work: list[tuple[Path, Iterator[Path]]] = [(root, iter(sorted(imports.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            file, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[file])
                if low[file] == index[file]:
                    group = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        group.append(member)
                        if member == file:
                            break
                    if len(group) > 1:
                        found.append(sorted(group))
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(sorted(imports.get(target, ())))))
            elif target in on_stack:
                low[file] = min(low[file], index[target])
    return sorted(found, key=len, reverse=True)
