"""The backend "hoplite" of `ray.util.collective`.

    from ray.util import collective

    collective.init_collective_group(world_size, rank, backend="hoplite", group_name="workers")
    collective.allreduce(gradient, "workers")

It takes arrays of numpy, and tensors of torch in host memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
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

from hoplite import _native
from hoplite._checks import Op
from hoplite._group import link as links
from hoplite._group import schedules
from hoplite._group.member import Group
from hoplite._group.operation import Operation
from hoplite._group.round import OPAQUE, Buffer, Round
from hoplite._memory import raw
from hoplite._serialize import TAG_PICKLE, encode, layout
from hoplite.errors import HopliteError, TypeMismatch
from hoplite.ray import _objects
from hoplite.ray._connection import twice
from hoplite.ray._rendezvous import clean_up, meet

#: The timeout of calls in seconds; by default `HOPLITE_TIMEOUT`.
TIMEOUT_VARIABLE = "HOPLITE_COLLECTIVE_TIMEOUT"
_FOREVER = 30 * 86400.0

_OPS: dict[ReduceOp, Op] = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}


class GroupEnded(HopliteError, RuntimeError):
    """The group has ended. The message has the reason."""


def _timeout() -> float:
    own = os.environ.get(TIMEOUT_VARIABLE)
    if own:
        return float(own)
    default = _native.default_timeout()
    return _FOREVER if default is None else default


class HopliteGroup(BaseGroup):
    """A member of a collective group.

    All members call the same collectives in the same order. A call blocks for at most
    `$HOPLITE_COLLECTIVE_TIMEOUT` seconds, or else `$HOPLITE_TIMEOUT`, or else 5 minutes.

    The group ends for all members if a collective fails, times out (`hoplite.Timeout`) or is
    interrupted (Ctrl-C or `ray.cancel`), or if a member's store ends; not if a send or receive
    fails. Each error after the first sent byte is also a `RuntimeError`.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._timeout = _timeout()
        # Lets supervisors delete a killed member's objects.
        lease = _objects.lease()
        # Reconnects, if the store has restarted.
        twice(_objects.client, lambda client: client.contains(lease.prefix))
        client = _objects.client()
        name, members = meet(
            client, lease.place.prefix, group_name, world_size, rank, lease.prefix, self._timeout
        )
        link = links.acquire(client.socket, "hoplite.ray")
        try:
            self._group = Group(
                link, [f"{member}{name}/" for member in members], group_name, rank, _failed
            )
        except BaseException:
            link.release()
            raise
        try:
            self.barrier()
            if rank == 0:
                clean_up(client, lease.place.prefix, group_name)
        except BaseException as error:
            self._group.abort(str(error))
            raise

    @classmethod
    def backend(cls) -> str:
        return "HOPLITE"

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        """Leaves the group. The last member deletes all objects of the group."""
        self._group.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        op = _OPS[allreduce_options.reduceOp]
        with _filled("allreduce", _single(tensor)) as room:
            _check_reducible(room, op)
            self._perform(
                "allreduce",
                lambda round: schedules.allreduce(round, room, op),
                meets=True,
                nbytes=2 * room.nbytes,
            )

    def barrier(self, barrier_options: BarrierOptions | None = None) -> None:
        self._perform("barrier", schedules.meet, meets=True)

    def reduce(self, tensor: list[Any], reduce_options: ReduceOptions | None = None) -> None:
        options = reduce_options or ReduceOptions()
        root, op, array = options.root_rank, _OPS[options.reduceOp], _single(tensor)
        with (
            _filled("reduce", array)
            if self._rank == root
            else contextlib.nullcontext(_buffer(array)) as room
        ):
            _check_reducible(room, op)
            self._perform(
                "reduce",
                lambda round: schedules.reduce(round, root, room, op),
                nbytes=room.nbytes * (self._world_size + 1),
            )

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: AllGatherOptions | None = None,
    ) -> None:
        (tensors,) = tensor_list
        self._check_count("allgather", tensors)
        with contextlib.ExitStack() as stack:
            rooms = [stack.enter_context(_filled("allgather", _checked(out))) for out in tensors]
            own = _buffer(_single(tensor))
            self._perform(
                "allgather",
                lambda round: schedules.allgather(round, own, rooms),
                meets=True,
                nbytes=own.nbytes,
            )

    def broadcast(
        self, tensor: list[Any], broadcast_options: BroadcastOptions | None = None
    ) -> None:
        root, array = (broadcast_options or BroadcastOptions()).root_rank, _single(tensor)
        with (
            contextlib.nullcontext(_buffer(array))
            if self._rank == root
            else _filled("broadcast", array) as room
        ):
            self._perform(
                "broadcast",
                lambda round: schedules.broadcast(round, root, room),
                nbytes=room.nbytes,
            )

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: ReduceScatterOptions | None = None,
    ) -> None:
        op = _OPS[(reducescatter_options or ReduceScatterOptions()).reduceOp]
        (tensors,) = tensor_list
        self._check_count("reducescatter", tensors)
        with _filled("reducescatter", _single(tensor)) as room:
            parts = [_buffer(_checked(part)) for part in tensors]
            _check_reducible(room, op)
            contents = _joined(parts, parts[self._rank], room)
            sizes = [part.nbytes for part in parts]
            self._perform(
                "reducescatter",
                lambda round: schedules.reduce_scatter(round, contents, sizes, room, op),
                meets=True,
                nbytes=2 * contents.nbytes,
            )

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Returns once the caller may change the tensor; the receiver may get it later."""
        to = send_options.dst_rank
        room, id = _buffer(_single(tensor)), self._group.id_of_sent(to, 0)
        self._pass(f"send to rank {to}", lambda round: round.put(id, room), id, room.nbytes)

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        source = recv_options.src_rank
        with _filled("recv", _single(tensor)) as room:
            id = self._group.id_of_received(source, 0)
            self._pass(
                f"recv from rank {source}",
                lambda round: round.get_into(id, room, source),
                id,
                room.nbytes,
                source,
            )

    def _perform(
        self,
        name: str,
        run: Callable[[Round], Awaitable[None]],
        *,
        meets: bool = False,
        nbytes: int = 0,
    ) -> None:
        done: Future[None] = Future()
        with self._ended_if_interrupted(done):
            self._group.submit(
                Operation(name, run, _settling(done), self._timeout, meets=meets, nbytes=nbytes)
            )
            done.result()

    def _pass(
        self,
        name: str,
        run: Callable[[Round], Awaitable[None]],
        id: str,
        nbytes: int,
        source: int | None = None,
    ) -> None:
        done: Future[None] = Future()
        with self._ended_if_interrupted(done):
            self._group.submit_message(
                Operation(
                    name,
                    run,
                    _settling(done),
                    self._timeout,
                    nbytes=nbytes,
                    message=id,
                    source=source,
                )
            )
            done.result()

    @contextlib.contextmanager
    def _ended_if_interrupted(self, done: Future[None]) -> Iterator[None]:
        """Ends the group on an interrupt: the operation may still use the caller's buffers."""
        try:
            yield
        except BaseException:
            if not done.done():
                # `abort` returns after all operations have ended.
                self._group.abort(f"rank {self._rank} was interrupted")
            raise

    def _check_count(self, name: str, tensors: list[Any]) -> None:
        if len(tensors) != self._world_size:
            raise ValueError(
                f"{name} of {self._world_size} members takes as many tensors, not {len(tensors)}"
            )


def _settling(done: Future[None]) -> Callable[[Exception | None], None]:
    return lambda error: done.set_result(None) if error is None else done.set_exception(error)


def _failed(message: str, cause: BaseException | None) -> Exception:
    """Makes an error of its cause's class that is also a `RuntimeError`."""
    if not isinstance(cause, HopliteError):
        return GroupEnded(message)
    error = _and_runtime_error(type(cause))(message)
    error.__dict__.update(cause.__dict__)
    return error


def _and_runtime_error(kind: type[HopliteError]) -> type[HopliteError]:
    def pickled(error: HopliteError) -> tuple[Callable[..., HopliteError], tuple[Any, ...]]:
        return _unpickled, (kind, str(error), error.__dict__)

    if issubclass(kind, RuntimeError):
        return kind
    about = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__reduce__": pickled}
    return type(kind.__name__, (kind, RuntimeError), about)


def _unpickled(kind: type[HopliteError], message: str, fields: dict[str, Any]) -> HopliteError:
    return _and_runtime_error(kind)(message, **fields)


# Arrays


def _single(tensors: list[Any]) -> Any:
    """Ray passes lists for several GPUs."""
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
def _filled(name: str, array: Any) -> Iterator[Buffer]:
    is_array = isinstance(array, np.ndarray)
    if is_array and not array.flags.writeable:
        raise TypeError(
            f"{name} writes to its array, and this one is read-only: pass a copy, `array.copy()`. Arguments of Ray "
            "are read-only, because processes share them"
        )
    if array.flags.c_contiguous if is_array else array.is_contiguous():
        yield _buffer(array)
        return
    room = np.ascontiguousarray(array) if is_array else array.contiguous()
    yield _buffer(room)
    if is_array:
        array[...] = room
    else:
        array.copy_(room)


def _buffer(array: Any) -> Buffer:
    encoded = encode(array)
    if encoded.user == TAG_PICKLE:
        raise TypeError(f"the backend hoplite takes arrays of numbers, not of {array.dtype}")
    (memory,) = map(raw, encoded.pieces)
    wanted = layout(encoded, "numpy" if isinstance(array, np.ndarray) else "torch")
    return Buffer(memory, encoded.dtype, encoded.shape, encoded.user, wanted)


def _joined(parts: list[Buffer], own: Buffer, room: Buffer) -> Buffer:
    if own.layout is None or room.layout is None:
        raise AssertionError("the layout of arrays is known")
    if (own.dtype, own.shape) != (room.dtype, room.shape) or any(
        part.dtype != own.dtype for part in parts
    ):
        shapes = ", ".join(f"{part.dtype}{list(part.shape or ())}" for part in parts)
        raise _and_runtime_error(TypeMismatch)(
            f"parts of {shapes} cannot be reduced into {room.dtype}{list(room.shape or ())}"
        )
    shapes_differ = len({part.shape for part in parts}) > 1
    shape = (
        (sum(math.prod(part.shape or ()) for part in parts),)
        if shapes_differ
        else (len(parts), *(own.shape or ()))
    )
    memory = np.concatenate([part.memory for part in parts])
    return Buffer(memory, own.dtype, shape, layout=own.layout._replace(shape=shape))


def _check_reducible(buffer: Buffer, op: Op) -> None:
    if buffer.dtype == OPAQUE:
        raise TypeError("only arrays of numbers can be reduced")
    if buffer.dtype == "bool" and op in ("sum", "prod"):
        raise _and_runtime_error(TypeMismatch)(f"{op} is not defined for elements of type bool")
