"""Searches RustSec's advisories: https://github.com/RustSec/advisory-db."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Version = tuple[int, int, int]


class NotADatabase(Exception):
    """A directory without advisories."""


def advisories(database: Path, package: str) -> Iterator[dict[str, Any]]:
    for file in sorted((database / "crates" / package).glob("RUSTSEC-*.md")):
        block = re.match(r"```toml\n(.*?)\n```", file.read_text(), re.DOTALL)
        if block is None:
            raise NotADatabase(f"{file} does not begin with a description")
        advisory = tomllib.loads(block[1])
        if "withdrawn" not in advisory["advisory"]:
            yield advisory


def found(database: Path, packages: Iterable[tuple[str, str]], ignored: set[str]) -> list[str]:
    if not any((database / "crates").glob("*/RUSTSEC-*.md")):
        raise NotADatabase(
            f"{database} is no checkout of RustSec's database: it has no crates/*/RUSTSEC-*.md"
        )
    lines = []
    for name, version in sorted(set(packages)):
        for advisory in advisories(database, name):
            about, versions = advisory["advisory"], advisory.get("versions", {})
            safe = versions.get("patched", []) + versions.get("unaffected", [])
            if about["id"] not in ignored and not any(
                meets(version, requirement) for requirement in safe
            ):
                kind = about.get("informational", "vulnerability")
                lines.append(
                    f"{name} {version}: {about['id']} ({kind}), see https://rustsec.org/advisories/{about['id']}"
                )
    return lines


def meets(version: str, requirement: str) -> bool:
    """A pre-release counts as its release."""
    return all(meets_one(parse(version), part.strip()) for part in requirement.split(","))


def meets_one(version: Version, requirement: str) -> bool:
    match = re.fullmatch(r"(>=|<=|>|<|=|\^|~)?\s*(\S+)", requirement)
    assert match is not None, requirement
    operator, text = match[1] or "^", match[2]
    if text == "*":
        return True
    least, given = parse(text), text.split("-")[0].split("+")[0].count(".") + 1
    if operator in (">=", "<=", ">", "<"):
        return {
            ">=": version >= least,
            "<=": version <= least,
            ">": version > least,
            "<": version < least,
        }[operator]
    if operator == "=":
        return version[:given] == least[:given]
    fixed = (
        min(given, 2)
        if operator == "~"
        else next((place + 1 for place in range(3) if least[place] > 0), given)
    )
    return version >= least and version[:fixed] == least[:fixed]


def parse(text: str) -> Version:
    numbers = [int(number) for number in re.split("[-+]", text)[0].split(".") if number.isdigit()]
    major, minor, patch = (numbers + [0, 0, 0])[:3]
    return major, minor, patch
