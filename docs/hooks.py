"""Links of the pages to files outside of docs/, for the site.

With HOPLITE_REPOSITORY, such as https://github.com/OWNER/NAME, they lead to the repository, else
they become text.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_REPOSITORY = os.environ.get("HOPLITE_REPOSITORY", "").rstrip("/")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return rewritten(markdown, page.file.src_uri, _REPOSITORY)


def rewritten(markdown: str, place: str, repository: str) -> str:
    """The text of the page at `place` below docs/, without links that leave the site."""

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(place), target))
        if path == "docs" or path.startswith("docs/"):
            return match[0]
        return f"[{label}]({repository}/blob/HEAD/{path}{anchor})" if repository else label

    return _LINK.sub(replace, markdown)
