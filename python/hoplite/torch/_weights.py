"""State dicts in the stores, for any number of receivers."""

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
    """Returns the complete versions, oldest first. Queries the directory.

    Examples:
        >>> for step in (1, 2):
        ...     version = hoplite.torch.put_state_dict("policy", {"weight": torch.ones(3)})
        >>> hoplite.torch.state_dict_versions("policy")
        [1, 2]
    """
    with opened(name, client) as (link, versions):
        return [turn.version for turn in link.run(versions.known()).complete]


def delete_state_dict(
    name: str, version: Version | None = None, *, client: hoplite.Client | None = None
) -> None:
    """Deletes a version, or all versions, also unfinished ones. Blocks until they are gone.

    Tensors that programs hold stay.

    Examples:
        >>> hoplite.torch.put_state_dict("policy", {"weight": torch.ones(3)})
        1
        >>> hoplite.torch.delete_state_dict("policy")
        >>> hoplite.torch.state_dict_versions("policy")
        []
    """
    with opened(name, client) as (link, versions):
        for turn in link.run(versions.known()).begun:
            if version is None or turn.version == version:
                link.run(versions.delete(turn))
