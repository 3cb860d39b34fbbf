"""HTML tables for notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def text(value: object) -> str:
    """Removes control characters and changes of the writing direction."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    shown = (
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(value)
    )
    return escape("".join(shown))


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{text(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<caption>{text(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds)}s"


def size(nbytes: float) -> str:
    for unit in _UNITS:
        if nbytes < 1024 or unit == _UNITS[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
