"""Hoplite as a backend of `torch.distributed`: collectives of CPU tensors.

    import torch.distributed as dist

    dist.init_process_group("hoplite")

Nothing needs to be imported: torch finds the backend by the entry point of this package. With accelerators,
`"cpu:hoplite,cuda:nccl"` leaves their tensors to another backend. `docs/torch.md` says what is supported.

The ranks ride on the objects of a store: each puts what it contributes under an id that is private to the group, and gets or
reduces those of the others. `hoplite._group` has the schedules.
"""

from __future__ import annotations

import torch.distributed as dist

__all__ = ["register"]

#: How the backend is called in `init_process_group`.
NAME = "hoplite"


def register() -> None:
    """Makes the backend known to torch, which calls this itself where the package is installed. Again: does nothing."""
    from hoplite.torch._backend import create

    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
