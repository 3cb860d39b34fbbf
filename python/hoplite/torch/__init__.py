"""Hoplite with torch: a backend of `torch.distributed`, and state dicts that many processes get.

    import torch.distributed as dist

    dist.init_process_group("hoplite")

Nothing needs to be imported: torch finds the backend by the entry point of this package. With accelerators,
`"cpu:hoplite,cuda:nccl"` leaves their tensors to another backend. `docs/start/torch.md` says what is supported.

The ranks ride on the objects of a store: each puts what it contributes under an id that is private to the group, and gets or
reduces those of the others. `hoplite._group` has the schedules.

    hoplite.torch.put_state_dict("policy", model.state_dict())            # in the trainer
    hoplite.torch.get_state_dict("policy", into=model.state_dict())       # in any number of others

`docs/howto/broadcast-weights.md` is about these.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hoplite._supported import check

if TYPE_CHECKING:
    from hoplite.torch._together import RankFailed
    from hoplite.torch._versions import VersionLost
    from hoplite.torch._weights import (
        StateDictMismatch,
        Weights,
        delete_state_dict,
        get_state_dict,
        put_state_dict,
        put_tensors,
        state_dict_versions,
        stream_state_dict,
    )

check(torch)

__all__ = [
    "RankFailed",
    "StateDictMismatch",
    "VersionLost",
    "Weights",
    "delete_state_dict",
    "get_state_dict",
    "put_state_dict",
    "put_tensors",
    "register",
    "state_dict_versions",
    "stream_state_dict",
]

#: How the backend is called in `init_process_group`.
NAME = "hoplite"


def register() -> None:
    """Makes the backend known to torch, which calls this itself where the package is installed. Again: does nothing."""
    from hoplite.torch._backend import create

    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def __getattr__(name: str) -> Any:
    """What is for state dicts is imported when it is used: who wants the backend only waits for its import."""
    if name in __all__:
        module = {"VersionLost": "_versions", "RankFailed": "_together"}.get(name, "_weights")
        return getattr(importlib.import_module(f"hoplite.torch.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
