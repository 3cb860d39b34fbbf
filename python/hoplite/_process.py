"""Reads the settings of a process, and makes unique names."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hoplite import _native

#: Without a handler: the program decides about messages.
logger = logging.getLogger("hoplite")

ALLOW_PICKLE_VARIABLE = "HOPLITE_ALLOW_PICKLE"


def program_name() -> str:
    return os.path.basename(sys.argv[0] if sys.argv else "") or "python"


def refuse_to_pickle() -> TypeError:
    return TypeError(
        "a client belongs to its process; pass hoplite.Ref, and call hoplite.init() where it arrives"
    )


def new_id() -> str:
    return f"py/{os.urandom(16).hex()}"


def may_unpickle() -> bool:
    """Returns `HOPLITE_ALLOW_PICKLE`, or `True`. Raises `ValueError` for other words."""
    said = os.environ.get(ALLOW_PICKLE_VARIABLE, "").strip().lower()
    if said in ("", "1", "true", "yes", "on"):
        return True
    if said in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{ALLOW_PICKLE_VARIABLE} is 1 or 0, not {said!r}")


def log_connected(
    native: _native.Client | _native.AsyncClient, socket: str | os.PathLike[str]
) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "connected to the store of node %s of the cluster %s at %s",
            native.node,
            native.cluster,
            socket,
        )
