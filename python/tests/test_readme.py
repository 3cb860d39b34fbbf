"""What the README shows works as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stores import PATIENCE, complaints

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "import" in block]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples(example: str, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert done.stdout


def test_the_first_example_is_of_ten_lines() -> None:
    assert len(EXAMPLES) == 2
    assert len([line for line in EXAMPLES[0].splitlines() if line]) <= 10
