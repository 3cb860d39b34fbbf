"""The backend "hoplite" of `ray.util.collective`.

    from ray.util import collective

    collective.init_collective_group(world_size, rank, backend="hoplite", group_name="workers")
    collective.allreduce(gradient, "workers")

There are no connections between the members: each puts its arrays into the store of its node, and gets or reduces those of
the others, under ids that only this group uses. For arrays of numpy, and tensors of torch in the memory of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

import hoplite.aio
from hoplite import ConnectionLost, Timeout, _native
from hoplite._calls import Op, check_reducible
from hoplite._serialize import encode
from hoplite.ray import _background, _objects
from hoplite.ray._connection import twice
from hoplite.ray._rendezvous import clean_up, meet

#: How long a call waits for the other members, in seconds, and where to say something else.
TIMEOUT_VARIABLE = "HOPLITE_COLLECTIVE_TIMEOUT"
DEFAULT_TIMEOUT = 300.0
#: After so many calls in which members do not wait for each other, or bytes in them, they do: what is put for the others
#: stays at least until then. A barrier takes little time beside either.
_MOST_CALLS, _MOST_BYTES = 32, 64 << 20

_OPS: dict[ReduceOp, Op] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}


class HopliteGroup(BaseGroup):
    """A member of a collective group.

    All members call the same collectives in the same order. A call waits for the members that it needs something of, at most
    as long as `$HOPLITE_COLLECTIVE_TIMEOUT` says, in seconds; then it raises `hoplite.Timeout`, and the group is of no use
    any more.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._timeout = float(os.environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        # What a member puts is deleted if it is killed.
        lease = _objects.lease()
        # If the store was started anew since it was last used, that is noticed here.
        twice(_objects.client, lambda client: client.contains(lease.prefix))
        self._client = _objects.client()
        name, members = meet(
            self._client, lease.place.prefix, group_name, world_size, rank, lease.prefix, self._timeout
        )
        self._prefixes = [f"{member}{name}/" for member in members]
        self._calls = 0
        self._sent = [0] * world_size
        self._received = [0] * world_size
        # What this member has to delete once all of them have begun a call after this one.
        self._left: list[str | bytes] = []
        self._calls_since = self._bytes_since = 0
        self.barrier()
        if rank == 0:
            clean_up(self._client, lease.place.prefix, group_name)

    @classmethod
    def backend(cls) -> str:
        return "HOPLITE"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Leaves the group. The last member to leave deletes what is left of it."""
        ids = [f"{prefix}left" for prefix in self._prefixes]
        # If the store is gone, so is what this member has put.
        with contextlib.suppress(ConnectionLost):
            self._client.put(ids[self._rank], b"", confirm=True)
            if all(map(self._client.contains, ids)):
                left = [known.id for prefix in self._prefixes for known in self._client.list(prefix)]
                self._client.delete(left)

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        op = _OPS[allreduce_options.reduceOp]
        with _contiguous(_single(tensor)) as room:
            check_reducible(encode(room))
            sources = self._ids("in")
            target = f"{self._prefixes[0]}{self._calls}/out"
            self._client.allreduce(target, sources, self._rank, room, op, out=room, timeout=self._timeout)
        left: list[str | bytes] = [sources[self._rank]]
        if self._rank == 0:
            left += [target, *_native.allreduce_ids(target.encode(), self._world_size)]
        self._all_have_begun(left)

    def barrier(self, barrier_options: BarrierOptions | None = None) -> None:
        ids = self._ids("at")
        self._client.put(ids[self._rank], b"")
        _, missing = self._client.wait(ids, timeout=self._timeout)
        if missing:
            ranks = ", ".join(str(ids.index(id)) for id in missing)
            raise Timeout(
                f"ranks {ranks} did not come to the barrier within {self._timeout} s",
                operation="barrier",
                waited=self._timeout,
            )
        self._all_have_begun([ids[self._rank]])

    def reduce(self, tensor: list[Any], reduce_options: ReduceOptions | None = None) -> None:
        options = reduce_options or ReduceOptions()
        op = _OPS[options.reduceOp]
        tensor = _single(tensor)
        with _contiguous(tensor) if self._rank == options.root_rank else _readable(tensor) as room:
            check_reducible(encode(room))
            sources = self._ids("in")
            self._client.put(sources[self._rank], room, self._timeout)
            if self._rank == options.root_rank:
                self._reduce(sources, room, op)
        self._some_may_lag(room.nbytes)

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: AllGatherOptions | None = None,
    ) -> None:
        (tensors,) = tensor_list
        ids = self._ids("in")
        with contextlib.ExitStack() as stack:
            rooms = [stack.enter_context(_contiguous(_checked(out))) for out in tensors]
            with _readable(_single(tensor)) as own:
                self._client.put(ids[self._rank], own, self._timeout)

            async def get_all(client: hoplite.aio.Client) -> None:
                gets = (client.get_into(id, room, self._timeout) for id, room in zip(ids, rooms, strict=True))
                await asyncio.gather(*gets)

            _background.begin(get_all).result()
        self._all_have_begun([ids[self._rank]])

    def broadcast(self, tensor: list[Any], broadcast_options: BroadcastOptions | None = None) -> None:
        root = (broadcast_options or BroadcastOptions()).root_rank
        tensor = _single(tensor)
        id = self._ids("in")[root]
        with _readable(tensor) if self._rank == root else _contiguous(tensor) as room:
            if self._rank == root:
                self._client.put(id, room, self._timeout)
                self._left.append(id)
            else:
                self._client.get_into(id, room, self._timeout)
        self._some_may_lag(room.nbytes)

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: ReduceScatterOptions | None = None,
    ) -> None:
        op = _OPS[(reducescatter_options or ReduceScatterOptions()).reduceOp]
        (tensors,) = tensor_list
        ids = self._ids("in")
        with _contiguous(_single(tensor)) as room:
            check_reducible(encode(room))
            for rank, part in enumerate(tensors):
                with _readable(_checked(part)) as own:
                    self._client.put(f"{ids[self._rank]}/{rank}", own, self._timeout)
            self._reduce([f"{id}/{self._rank}" for id in ids], room, op)
        self._all_have_begun([])

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Returns when the tensor may be changed again; the receiver may get it later."""
        to = send_options.dst_rank
        with _readable(_single(tensor)) as room:
            self._client.put(self._message(self._rank, to, self._sent[to]), room, self._timeout)
        self._sent[to] += 1

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        source = recv_options.src_rank
        id = self._message(source, self._rank, self._received[source])
        with _contiguous(_single(tensor)) as room:
            self._client.get_into(id, room, self._timeout)
        self._received[source] += 1
        _delete([id])

    def _reduce(self, sources: list[str], room: Any, op: Op) -> None:
        """Reduces what nobody else reduces into `room`, and deletes it."""
        target = f"{sources[self._rank]}/out"
        self._client.reduce(target, sources, op, timeout=self._timeout)
        self._client.get_into(target, room, self._timeout)
        _delete([target, *sources])

    def _ids(self, what: str) -> list[str]:
        """The ids of what the members put in this call, which begins here."""
        self._calls += 1
        return [f"{prefix}{self._calls}/{what}" for prefix in self._prefixes]

    def _message(self, source: int, to: int, number: int) -> str:
        return f"{self._prefixes[source]}to/{to}/{number}"

    def _all_have_begun(self, left: list[str | bytes]) -> None:
        """This call has shown that all members have begun it. So they have ended those before, and nobody needs any more
        what this member has put for them; `left` is needed until the next time.
        """
        _delete(self._left)
        self._left = left
        self._calls_since = self._bytes_since = 0

    def _some_may_lag(self, nbytes: int) -> None:
        """This call has not shown that. After many of them, waits for all; all members count alike."""
        self._calls_since += 1
        self._bytes_since += nbytes
        if self._calls_since >= _MOST_CALLS or self._bytes_since >= _MOST_BYTES:
            self.barrier()


def _delete(ids: list[Any]) -> None:
    """Deletes objects in the background: nobody waits for it."""
    if ids:
        _background.begin(lambda client: client.delete(ids))


def _single(tensors: list[Any]) -> Any:
    """The tensor of a call: Ray puts it into a list, for the sake of those with several GPUs."""
    (tensor,) = tensors
    return _checked(tensor)


def _checked(tensor: Any) -> Any:
    torch = sys.modules.get("torch")
    if isinstance(tensor, np.ndarray):
        return tensor
    if torch is not None and isinstance(tensor, torch.Tensor):
        if tensor.device.type != "cpu":
            raise TypeError(
                f"the backend hoplite takes tensors in the memory of the host, not on {tensor.device}"
            )
        return tensor.detach()
    raise TypeError(
        f"the backend hoplite takes arrays of numpy and tensors of torch, not {type(tensor).__name__}"
    )


@contextlib.contextmanager
def _readable(tensor: Any) -> Iterator[Any]:
    """The tensor, to be read."""
    yield tensor


@contextlib.contextmanager
def _contiguous(tensor: Any) -> Iterator[Any]:
    """The tensor in contiguous memory, to be written to."""
    is_array = isinstance(tensor, np.ndarray)
    if tensor.flags.c_contiguous if is_array else tensor.is_contiguous():
        yield tensor
        return
    room = np.ascontiguousarray(tensor) if is_array else tensor.contiguous()
    yield room
    if is_array:
        tensor[...] = room
    else:
        tensor.copy_(room)
