"""Checks that the files exist which ARCHITECTURE.md names, and those to which any page links."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A path, or the end of one where the sentence says in which directory it is.
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)*(?:\.(?:rs|py|proto|txt|json|js|sh|toml|md)|/))`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = [f"/{file}" for file in listed.split("\0") if file and (ROOT / file).exists()]
    named = sorted(set(NAMED.findall((ROOT / "ARCHITECTURE.md").read_text())))
    wrong = [f"ARCHITECTURE.md names {place}, which is not there" for place in named if not is_there(place, files)]
    pages = [Path(file.removeprefix("/")) for file in files if file.endswith(".md")]
    for page in pages:
        for link in sorted(set(LINK.findall((ROOT / page).read_text()))):
            if "://" not in link and not (ROOT / page.parent / link).exists():
                wrong.append(f"{page} links to {link}, which is not there")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"ARCHITECTURE.md names {len(named)} files and directories, {len(pages)} pages link to others: all are there")
    return 1 if wrong else 0


def is_there(place: str, files: list[str]) -> bool:
    """Whether a file has this path or ends with it, or lies in this directory."""
    if place.endswith("/"):
        return any(f"/{place}" in file for file in files)
    return any(file.endswith(f"/{place}") for file in files)


if __name__ == "__main__":
    sys.exit(main())
