"""Derives the place of a Ray node from its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hoplite.ray._supervisor import Settings

#: Outermost first.
PLACE_KEYS: Final = ("zone", "pod", "rack", "host")
_RAY_ZONE: Final = "ray.io/availability-zone"


def place_labels(node: Mapping[str, Any], settings: Settings) -> dict[str, str]:
    if any(option == "--labels" or option.startswith("--labels=") for option in settings.options):
        return {}
    labels: Mapping[str, str] = node.get("Labels") or {}
    found = {}
    for key in PLACE_KEYS:
        if settings.labels is None:
            named = (name for name in sorted(labels, key=len) if name.rpartition("/")[2] == key)
            name = next(named, _RAY_ZONE if key == "zone" else "")
        else:
            name = settings.labels.get(key, "")
        if value := labels.get(name):
            found[key] = value
    return found
