"""Checks the dependencies against deny.toml, and runs cargo-deny if it is installed.

HOPLITE_ADVISORIES names a checkout of https://github.com/RustSec/advisory-db.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import advisories

ROOT = Path(__file__).resolve().parents[2]
CARGO = os.environ.get("CARGO", "cargo")
# A package, and dependencies that its users must not build.
NOT_OF_LIBRARY = ("hoplite-client", {"clap", "indicatif", "tempfile", "tonic"})


def main() -> int:
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    command = [CARGO, "metadata", "--format-version", "1", "--locked", "--all-features"]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    packages = json.loads(found.stdout)["packages"]
    wrong = [
        f"{package['name']} {package['version']}: {why}"
        for package in packages
        for why in faults(package, rules)
    ]
    wrong += heavy_dependencies(*NOT_OF_LIBRARY)
    database = os.environ.get("HOPLITE_ADVISORIES")
    if database:
        ignored = {advisory["id"] for advisory in rules.get("advisories", {}).get("ignore", [])}
        versions = [
            (package["name"], package["version"])
            for package in packages
            if package["source"] is not None
        ]
        try:
            wrong += advisories.found(Path(database), versions, ignored)
        except advisories.NotADatabase as error:
            wrong.append(str(error))
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        return 1
    print(f"{len(packages)} packages: licences, bans and sources are as deny.toml says")
    if database:
        print(f"no advisory in {database} concerns them")
    else:
        print(
            "advisories are NOT checked: HOPLITE_ADVISORIES names no checkout of https://github.com/RustSec/advisory-db"
        )
    if shutil.which("cargo-deny") is not None:
        return subprocess.run(
            [CARGO, "deny", "check", "licenses", "bans", "sources"], cwd=ROOT
        ).returncode
    return 0


def faults(package: dict[str, Any], rules: dict[str, Any]) -> list[str]:
    found = []
    licence = package["license"]
    if licence is None or not is_allowed(licence, set(rules["licenses"]["allow"])):
        found.append(f"the licence {licence!r} is not allowed")
    for ban in rules["bans"]["deny"]:
        if package["name"] == ban["crate"]:
            found.append(f"it is banned: {ban['reason']}")
    sources = {f"registry+{registry}" for registry in rules["sources"]["allow-registry"]}
    if package["source"] is not None and package["source"] not in sources:
        found.append(f"it comes from {package['source']}")
    return found


def heavy_dependencies(library: str, banned: set[str]) -> list[str]:
    command = [
        CARGO,
        "tree",
        "--locked",
        "--package",
        library,
        "--edges",
        "normal",
        "--prefix",
        "none",
    ]
    found = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    names = {line.split()[0] for line in found.stdout.splitlines() if line}
    return [
        f"{library} depends on {name}, which a library does not need"
        for name in sorted(names & banned)
    ]


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Evaluates an SPDX expression; AND binds closer than OR."""
    tokens = re.findall(r"[()]|[^\s()/]+(?: WITH [^\s()]+)?|/", expression)
    tokens = ["OR" if token == "/" else token for token in tokens]

    def alternatives() -> bool:
        met = parts()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = parts() or met
        return met

    def parts() -> bool:
        met = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one() -> bool:
        token = tokens.pop(0)
        if token != "(":
            return token in allowed
        met = alternatives()
        tokens.pop(0)
        return met

    return alternatives()


if __name__ == "__main__":
    sys.exit(main())
