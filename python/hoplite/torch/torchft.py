"""Brings replicas of torchft that are behind to the state of a healthy one: a
`CheckpointTransport`.

    manager = torchft.Manager(...,
    checkpoint_transport=HopliteTransport(timeout=timedelta(seconds=60)))

The sender puts its state once, and continues. Any number of receivers get it at the same time.
"""

from __future__ import annotations

import pickle
import secrets
from datetime import timedelta
from typing import Any

from torch.distributed.tensor import DTensor
from torchft.checkpointing.transport import CheckpointTransport

import hoplite
from hoplite._pickles import check_pickle
from hoplite.torch._state import Path, flatten, unflatten
from hoplite.torch._weights import delete_state_dict, get_state_dict, put_state_dict

__all__ = ["HopliteTransport"]


class HopliteTransport(CheckpointTransport[Any]):  # type: ignore[misc]
    """Sends and receives checkpoints through the stores.

    Args:
        timeout: The limit of a transfer, if torchft names none.
        state_dict: A function that returns a state dict whose tensors are filled; `None` for new
            tensors.
        client: `None` for that of `hoplite.init`.

    Examples:
        >>> from datetime import timedelta
        >>> from hoplite.torch.torchft import HopliteTransport
        >>> transport, timeout = HopliteTransport(), timedelta(seconds=10)
        >>> transport.send_checkpoint([1], 7, {"weight": torch.ones(3)}, timeout)
        >>> transport.recv_checkpoint(0, transport.metadata(), 7, timeout)
        {'weight': tensor([1., 1., 1.])}
        >>> transport.shutdown()
    """

    def __init__(
        self,
        timeout: timedelta = timedelta(minutes=5),
        state_dict: Any = None,
        client: hoplite.Client | None = None,
    ) -> None:
        self._timeout = timeout
        self._state_dict = state_dict
        self._client = client
        self._name = f"torchft-{secrets.token_hex(8)}"
        self._has_sent = False

    def metadata(self) -> str:
        return self._name

    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta
    ) -> None:
        """Returns when the checkpoint is in the store."""
        local, specs = _without_mesh(state_dict)
        sent = {"state": local, "specs": pickle.dumps(specs)}
        self._has_sent = True
        seconds = timeout.total_seconds()
        put_state_dict(self._name, sent, version=step, keep=1, client=self._client, timeout=seconds)

    def disallow_checkpoint(self) -> None:
        pass

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:
        into = None
        if self._state_dict is not None:
            into = {"state": _without_mesh(self._state_dict())[0], "specs": b""}
        seconds = min(timeout, self._timeout).total_seconds()
        got = get_state_dict(
            metadata, into, version=step, client=self._client, timeout=seconds
        ).state_dict
        # torchft sends metadata only as a pickle.
        check_pickle(
            (hoplite.init() if self._client is None else self._client).allow_pickle, metadata
        )
        leaves = flatten(got["state"])
        tensors: dict[Path, Any] = dict(leaves.tensors)
        for path, spec in pickle.loads(got["specs"]).items():
            tensors[path] = DTensor(tensors[path], spec, requires_grad=False)
        return unflatten({**tensors, **leaves.values})

    def shutdown(self, wait: bool = True) -> None:
        if self._has_sent:
            delete_state_dict(self._name, client=self._client)
            self._has_sent = False


def _without_mesh(state_dict: Any) -> tuple[Any, dict[Path, Any]]:
    """Replaces DTensors by local parts, which the same rank of another replica needs."""
    leaves = flatten(state_dict)
    tensors: dict[Path, Any] = dict(leaves.tensors)
    specs: dict[Path, Any] = {}
    for path, tensor in leaves.tensors.items():
        if isinstance(tensor, DTensor):
            tensors[path], specs[path] = tensor.to_local().detach(), tensor._spec
    return unflatten({**tensors, **leaves.values}), specs
