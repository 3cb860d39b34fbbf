"""Hoplite with torch: a backend of `torch.distributed`, and state dicts for many processes.

    import torch.distributed as dist

    dist.init_process_group("hoplite")

With accelerators, pass `"cpu:hoplite,cuda:nccl"`: another backend takes their tensors. See
`docs/start/torch.md` and `docs/reference/torch.md`.

    hoplite.torch.put_state_dict("policy", model.state_dict())            # in the trainer
    hoplite.torch.get_state_dict("policy", into=model.state_dict())       # in any number of others

See `docs/howto/broadcast-weights.md`.
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

NAME = "hoplite"


def register() -> None:
    """Registers the backend. torch calls this if the package is installed.

    It may be called several times, without blocking.

    Examples:
        >>> hoplite.torch.register()
        >>> torch.distributed.Backend("hoplite")
        'hoplite'
    """
    from hoplite.torch._backend import create

    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = {"VersionLost": "_versions", "RankFailed": "_together"}.get(name, "_weights")
        return getattr(importlib.import_module(f"hoplite.torch.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
