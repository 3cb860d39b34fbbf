"""Where a node of Ray is, as its labels say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hoplite.ray._keeper import Settings

#: The keys of labels by which a store knows where it is, outermost first.
PLACE_KEYS: Final = ("zone", "pod", "rack", "host")
#: What Ray calls the zone that it knows from the cloud or from Kubernetes.
_RAY_ZONE: Final = "ray.io/availability-zone"


def place_labels(node: Mapping[str, Any], settings: Settings) -> dict[str, str]:
    """The labels of the store of a node, one of `ray.nodes()`."""
    if any(option == "--labels" or option.startswith("--labels=") for option in settings.options):
        return {}
    # Versions of Ray without labels do not name them.
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
