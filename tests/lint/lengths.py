"""Checks the lengths of sources."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 500
LONGER = {
    "hoplite-client/src/client.rs": 531,
    "hoplite-client/src/connection/mod.rs": 571,
    "hoplite-client/src/report.rs": 571,
    "hoplite-core/src/objects/put.rs": 506,
    "hoplite-core/src/vocabulary/error.rs": 581,
    "hoplite-net/src/tls.rs": 602,
    "hoplite-sim/src/cluster/exchange.rs": 507,
    "hoplite-store/src/local/connection.rs": 621,
    "proto/src/arbitrary.rs": 755,
    "python/hoplite/errors.py": 555,
}
TESTS = re.compile(r"(^|/)(tests/|tests\.rs$|(conftest|test_\w+)\.py$)")
LAST_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod tests \{\n(?:(?!\}).*\n)*\}\s*\Z", re.MULTILINE)


def main(root: Path = ROOT) -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = sorted(file for file in set(listed.split("\0")) if is_source(file))
    counts = {file: lines(file, root) for file in files if (root / file).is_file()}
    wrong = False
    for file, count in counts.items():
        most = LONGER.get(file, MOST_LINES)
        if count > most:
            print(f"{file} has {count} lines, where {most} is the most", file=sys.stderr)
            wrong = True
    if not wrong:
        print(
            f"{len(counts)} files have at most {MOST_LINES} lines, and {len(LONGER)} may have more"
        )
    return 1 if wrong else 0


def is_source(file: str) -> bool:
    return file.endswith((".rs", ".py")) and not TESTS.search(file)


def lines(file: str, root: Path) -> int:
    text = (root / file).read_text()
    return len((LAST_TESTS.sub("", text) if file.endswith(".rs") else text).splitlines())


if __name__ == "__main__":
    sys.exit(main())
