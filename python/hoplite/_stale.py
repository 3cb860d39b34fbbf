"""Warns about values that no shard of the directory could confirm."""

from __future__ import annotations

import sys
import warnings

from hoplite import _native


class StaleWarning(UserWarning):
    """A get with `allow_stale=True` returned an object that may be deleted or replaced, because no
    shard of the directory confirmed it.

    Examples:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", hoplite.StaleWarning)    # raise it instead
        ...     ref = client.put("fresh", 7)
        ...     client.get(ref, allow_stale=True)
        7
    """


def warn_if_stale(got: _native.View | _native.Reader, id: str | bytes) -> None:
    if not got.is_stale:
        return
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == "hoplite":
        level, frame = level + 1, frame.f_back
    message = f"object {id!r} may be deleted or replaced: no shard confirmed that it still exists"
    warnings.warn(message, StaleWarning, stacklevel=level)
