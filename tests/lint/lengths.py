"""Checks the lengths of sources."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 500
LONGER = {"python/hoplite/errors.py": 555}
TESTS = re.compile(r"(^|/)(tests/|tests\.rs$|(conftest|test_\w+)\.py$)")
LAST_TESTS = re.compile(r"^#\[cfg\(test\)\]\nmod tests \{\n(?:(?!\}).*\n)*\}\s*\Z", re.MULTILINE)


def main(root: Path = ROOT) -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = sorted(file for file in set(listed.split("\0")) if is_source(file))
    counts = {file: lines(file, root) for file in files if (root / file).is_file()}
    wrong = [
        f"{file} has {count} lines, where {LONGER.get(file, MOST_LINES)} is the most"
        for file, count in counts.items()
        if count > LONGER.get(file, MOST_LINES)
    ]
    wrong += [
        f"{file} has {counts.get(file, 0)} lines: remove it from LONGER in tests/lint/lengths.py"
        for file in LONGER
        if counts.get(file, 0) <= MOST_LINES
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(counts)} files have at most {MOST_LINES} lines, but for {len(LONGER)}")
    return 1 if wrong else 0


def is_source(file: str) -> bool:
    return file.endswith((".rs", ".py")) and not TESTS.search(file)


def lines(file: str, root: Path) -> int:
    text = (root / file).read_text()
    return len((LAST_TESTS.sub("", text) if file.endswith(".rs") else text).splitlines())


if __name__ == "__main__":
    sys.exit(main())
