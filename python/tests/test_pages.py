from __future__ import annotations

import importlib.util
from pathlib import Path

import pages
import pytest

SHOWN = [page for page in pages.all_pages() if not page.uses_ray]


@pytest.mark.parametrize("page", SHOWN, ids=[page.name for page in SHOWN])
def test_page(page: pages.Page, tmp_path: Path) -> None:
    for module in sorted(page.modules - {"page"}):
        if importlib.util.find_spec(module) is None and f"{module}.py" not in page.files:
            pytest.skip(f"{module} is not installed")
    pages.run(page, tmp_path)


def test_the_first_example_is_short() -> None:
    page = pages.read(pages.ROOT / "python" / "README.md")
    assert len([line for line in page.files["example.py"].splitlines() if line]) <= 11


def test_an_output_is_compared() -> None:
    assert pages._is_like("1\n2\n3\n", "1\n...\n3\n")
    assert pages._is_like("1\n3\n", "1\n...\n3\n")
    assert not pages._is_like("1\n2\n", "1\n...\n3\n")
    assert not pages._is_like("10\n", "1.\n")


def test_blocks_are_told_apart() -> None:
    text = "```python\n# a.py\nimport b\n```\n```python\nimport c\n```\n"
    text += "```console\n$ a \\\n    b\n1\n$ c &\n```\n```sh\nd\n```\n"
    page = pages.Page("", *pages.parts(text))
    assert (page.files, page.program) == ({"a.py": "# a.py\nimport b\n"}, "import c\n")
    assert page.commands == [("a \\\n    b", "1\n"), ("c &", "")]
    assert page.modules == {"b", "c"}
