"""State dicts in the stores: put by one trainer, or by its ranks, and got by any number of others. See `docs/howto/broadcast-weights.md`."""

from __future__ import annotations

import hoplite
from hoplite.torch._opened import opened
from hoplite.torch._reading import StateDictMismatch, Weights, get_state_dict
from hoplite.torch._streaming import stream_state_dict
from hoplite.torch._versions import Version
from hoplite.torch._writing import put_state_dict, put_tensors

__all__ = [
    "StateDictMismatch",
    "Weights",
    "delete_state_dict",
    "get_state_dict",
    "put_state_dict",
    "put_tensors",
    "state_dict_versions",
    "stream_state_dict",
]


def state_dict_versions(name: str, *, client: hoplite.Client | None = None) -> list[Version]:
    """The versions that are complete, oldest first."""
    with opened(name, client) as (link, versions):
        return [turn.version for turn in link.run(versions.known()).complete]


def delete_state_dict(
    name: str, version: Version | None = None, *, client: hoplite.Client | None = None
) -> None:
    """Deletes a version, or all of them, finished or not. Tensors that were got stay."""
    with opened(name, client) as (link, versions):
        for turn in link.run(versions.known()).begun:
            if version is None or turn.version == version:
                link.run(versions.delete(turn))
