"""The collectives as puts, gets and reduces of objects. Tensors are buffers of bytes here.

All ranks of a group call the same function with the same arguments but their own buffers. An object of a collective is named
after the group, the number of the collective, its part in it and a rank, so that nobody has to ask for names. With n ranks
and buffers of S bytes, each on a node of its own, a node receives and sends at most, in so many steps one after the other:

| collective | a node receives | it sends | steps |
| --- | --- | --- | --- |
| broadcast | S | S, in whatever tree comes about | 1 put, 1 get |
| reduce, at the root | S | S | 1 put, 1 reduce along a chain or tree |
| allreduce, reduce_scatter, barrier, below 64 KiB and 17 ranks | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| allreduce | 2S (n-1)/n; 2S, below 1 MiB or 3 ranks | as much | 1 put, then reduces and gets that overlap |
| reduce_scatter, of n parts of S | S, and what the chains carry | | 1 put, n reduces at once |
| allgather | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| gather, at the root | S (n-1) | | 1 put, n-1 gets at once |
| scatter, at the root | | S (n-1) | n-1 puts, 1 get |
| all_to_all, of n parts of S | S (n-1) | S (n-1) | n-1 puts, n-1 gets at once |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from hoplite import _native
from hoplite._calls import Op
from hoplite._serialize import _DTYPES, _NAMES_OF_TORCH
from hoplite.errors import SizeMismatch, TypeMismatch

if TYPE_CHECKING:
    import numpy.typing as npt

    #: The memory of a tensor.
    Bytes = npt.NDArray[np.uint8]

#: Below which size of a buffer, and up to how many ranks, each gets the buffers of all and reduces them itself: objects of
#: this size come with the answer of the directory, and a reduce by the stores takes about as long as a dozen of them.
SMALL_BYTES = 64 << 10
SMALL_RANKS = 16
#: From which size on a copy is left to another thread: it takes longer than to change threads, about 50 us.
COPY_ASIDE_BYTES = 1 << 20

#: What the store calls bytes that are no array.
OPAQUE = "opaque"
_ITEM_BYTES = {name: getattr(torch, torch_name).itemsize for torch_name, name in _NAMES_OF_TORCH.items()}


def _shape(dtype: str, nbytes: int) -> tuple[int] | None:
    """That of the array with so many bytes, which has one dimension; none, if it is none."""
    return None if dtype == OPAQUE else (nbytes // _ITEM_BYTES[dtype],)


class Round:
    """One rank's part in one collective, or in a message."""

    def __init__(
        self, client: _native.AsyncClient, prefix: str, rank: int, size: int, deadline: float
    ) -> None:
        self.client = client
        self.rank = rank
        self.size = size
        #: What this rank has made, and somebody has to delete once all are done.
        self.made: list[str] = []
        #: From whom this rank waits for which object, for those who ask why it takes so long.
        self.awaited: dict[int, str] = {}
        self._prefix = prefix
        self._deadline = deadline

    def id(self, part: str, rank: int) -> str:
        """The id of a rank's object."""
        return f"{self._prefix}{part}{rank}"

    def ids(self, part: str) -> list[str]:
        """The ids of the objects of all ranks, in their order."""
        return [f"{self._prefix}{part}{rank}" for rank in range(self.size)]

    def others(self) -> list[int]:
        """The other ranks, each beginning with the one after it, so that not all turn to the same one."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def is_small(self, nbytes: int) -> bool:
        """Whether it is quicker to get what all ranks have than to have the stores reduce it."""
        return nbytes < SMALL_BYTES and self.size <= SMALL_RANKS

    def left(self) -> float:
        """The seconds until the time limit."""
        return max(0.0, self._deadline - time.monotonic())

    async def put(self, id: str, contents: Bytes, dtype: str = OPAQUE) -> None:
        """Puts bytes, or an array that will be reduced."""
        self.made.append(id)
        await self.client.put(id, [contents], dtype, _shape(dtype, contents.nbytes), b"", self.left(), False)

    async def get_into(self, id: str, room: Bytes, rank: int) -> None:
        """Copies what a rank has put."""
        self.awaited[rank] = id
        size_bytes = await self.client.get_into(id, room, self.left())
        if size_bytes != room.nbytes:
            raise SizeMismatch(
                f"rank {rank} passed {size_bytes} bytes, and rank {self.rank} expected {room.nbytes}"
            )

    def checked(self, rank: int, view: _native.View, dtype: str, nbytes: int) -> Bytes:
        """The bytes that a rank has put, which are to be so many, of this type."""
        if (view.dtype, view.nbytes) != (dtype, nbytes):
            raise TypeMismatch(
                f"rank {rank} passed {view.nbytes} bytes of {view.dtype}, and rank {self.rank} {nbytes} of {dtype}"
            )
        return np.ndarray((nbytes,), np.uint8, cast(Any, view))


class Reduction:
    """What is done with the elements of buffers."""

    def __init__(self, dtype: str, op: Op) -> None:
        self.dtype = dtype
        self.op = op

    def of(self, buffers: Sequence[Bytes]) -> Bytes:
        """Reduces buffers here, in their order."""
        if self.dtype == "bf16":
            # Which numpy does not know.
            of_torch = _OF_TORCH[self.op]
            total = torch.from_numpy(buffers[0].copy()).view(torch.bfloat16)
            for buffer in buffers[1:]:
                of_torch(total, torch.from_numpy(buffer.copy()).view(torch.bfloat16), out=total)
            return total.view(torch.uint8).numpy()
        of_numpy, dtype = _OF_NUMPY[self.op], _DTYPES[self.dtype]
        array = buffers[0].copy().view(dtype)
        # As the stores do it: what is too large is infinite, or wraps around.
        with np.errstate(all="ignore"):
            for buffer in buffers[1:]:
                of_numpy(array, buffer.view(dtype), out=array)
        return array.view(np.uint8)


_OF_NUMPY: dict[Op, np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
_OF_TORCH: dict[Op, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


async def at_once(*parts: Awaitable[Any]) -> None:
    """Does several things at once; the first one that fails ends the others."""
    if len(parts) == 1:
        await parts[0]
        return
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        # So that nobody uses the buffers any more when the caller hears of it.
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def copy(contents: Bytes, out: Bytes) -> None:
    """Copies what a rank has for itself."""
    if contents.nbytes < COPY_ASIDE_BYTES:
        out[:] = contents
    else:
        await asyncio.to_thread(np.copyto, out, contents)


async def meet(round: Round) -> None:
    """Waits until all ranks are here."""
    nothing = np.empty(0, np.uint8)
    if round.size <= SMALL_RANKS:
        await _views_of_all(round, nothing, OPAQUE, "")
    else:
        await allreduce(round, nothing, Reduction("u8", "max"))


async def allreduce(round: Round, buffer: Bytes, reduction: Reduction, part: str = "") -> None:
    """Replaces the buffer of each rank by the reduction of all of them. All get the same bits."""
    if round.is_small(buffer.nbytes):
        buffer[:] = reduction.of(await _views_of_all(round, buffer, reduction.dtype, part))
        return
    sources = round.ids(f"{part}s")
    target = round.id(f"{part}t", 0)
    round.awaited = dict(enumerate(sources))
    results = _native.allreduce_ids(target.encode(), round.size)
    # Each deletes what it may have made: rank 0 the target, or each its segment.
    round.made += [str(id) for id in results[1 + round.rank : 2 + round.rank]]
    if round.rank == 0:
        round.made.append(target)
    await round.put(sources[round.rank], buffer, reduction.dtype)
    await round.client.allreduce_into(target, sources, round.rank, buffer, reduction.op, False, round.left())


async def reduce(round: Round, root: int, buffer: Bytes, reduction: Reduction) -> None:
    """Replaces the buffer of the root by the reduction of all of them."""
    sources = round.ids("s")
    if round.is_small(buffer.nbytes):
        if round.rank != root:
            await round.put(sources[round.rank], buffer, reduction.dtype)
            return
        others = [rank for rank in range(round.size) if rank != root]
        round.awaited = {rank: sources[rank] for rank in others}
        views = await round.client.gather([sources[rank] for rank in others], round.left())
        buffers = [
            round.checked(rank, view, reduction.dtype, buffer.nbytes)
            for rank, view in zip(others, views, strict=True)
        ]
        buffers.insert(root, buffer)
        buffer[:] = reduction.of(buffers)
        return
    await round.put(sources[round.rank], buffer, reduction.dtype)
    if round.rank == root:
        await _reduce_into(round, sources, buffer, reduction.op, None)


async def reduce_scatter(
    round: Round, contents: Bytes, part_bytes: Sequence[int], out: Bytes, reduction: Reduction, part: str = ""
) -> None:
    """Each rank gets the reduction of one part of all buffers, in the order of the ranks.

    Args:
        contents: this rank's parts, one after the other.
        part_bytes: the sizes of the parts, the same on all ranks.
    """
    start = sum(part_bytes[: round.rank])
    stop = start + part_bytes[round.rank]
    if round.is_small(contents.nbytes):
        views = await _views_of_all(round, contents, reduction.dtype, part)
        out[:] = reduction.of([view[start:stop] for view in views])
        return
    sources = round.ids(f"{part}s")
    await round.put(sources[round.rank], contents, reduction.dtype)
    # Its own last: it need not travel. And not all begin with the same rank.
    sources = [sources[peer] for peer in [*round.others(), round.rank]]
    await _reduce_into(round, sources, out, reduction.op, (start, stop), part)


async def _views_of_all(round: Round, contents: Bytes, dtype: str, part: str) -> list[Bytes]:
    """Puts the contents of each rank, and returns those of all, in the memory of the store."""
    ids = round.ids(f"{part}v")
    round.made.append(ids[round.rank])
    round.awaited = dict(enumerate(ids))
    shape = _shape(dtype, contents.nbytes)
    views = await round.client.allgather(ids, round.rank, [contents], dtype, shape, b"", round.left())
    return [round.checked(rank, view, dtype, contents.nbytes) for rank, view in enumerate(views)]


async def _reduce_into(
    round: Round, sources: list[str], out: Bytes, op: Op, byte_range: tuple[int, int] | None, part: str = ""
) -> None:
    target = round.id(f"{part}t", round.rank)
    round.made.append(target)
    round.awaited = {int(id.rpartition("s")[2]): id for id in sources}
    left = round.left()
    # The target is read while it grows.
    await at_once(
        round.client.reduce(target, sources, op, None, False, byte_range, left),
        round.client.get_into(target, out, left),
    )


async def broadcast(round: Round, root: int, buffer: Bytes) -> None:
    """Copies the buffer of the root into those of the others."""
    id = round.id("b", root)
    if round.rank == root:
        await round.put(id, buffer)
    else:
        await round.get_into(id, buffer, root)


async def allgather(round: Round, contents: Bytes, outs: Sequence[Bytes], part: str = "") -> None:
    """Copies the contents of each rank into the buffer that all others have for it."""
    if round.is_small(contents.nbytes) and len({out.nbytes for out in outs}) == 1:
        for view, out in zip(await _views_of_all(round, contents, OPAQUE, part), outs, strict=True):
            out[:] = view
        return
    ids = round.ids(f"{part}g")
    await round.put(ids[round.rank], contents)
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[round.rank]), *gets)


async def gather(round: Round, root: int, contents: Bytes, outs: Sequence[Bytes]) -> None:
    """Copies the contents of each rank into the buffer that the root has for it."""
    ids = round.ids("g")
    if round.rank != root:
        await round.put(ids[round.rank], contents)
        return
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[root]), *gets)


async def scatter(round: Round, root: int, contents: Sequence[Bytes], out: Bytes) -> None:
    """Copies the contents that the root has for each rank into the buffer of that rank."""
    if round.rank != root:
        await round.get_into(round.id("c", round.rank), out, root)
        return
    for peer in round.others():
        await round.put(round.id("c", peer), contents[peer])
    await copy(contents[root], out)


async def all_to_all(round: Round, contents: Sequence[Bytes], outs: Sequence[Bytes]) -> None:
    """Copies the contents that each rank has for each other one into the buffer that it has for it there."""
    for peer in round.others():
        await round.put(round.id(f"{round.rank}/", peer), contents[peer])
    gets = (round.get_into(round.id(f"{peer}/", round.rank), outs[peer], peer) for peer in round.others())
    await at_once(copy(contents[round.rank], outs[round.rank]), *gets)


async def send(round: Round, id: str, contents: Bytes) -> None:
    """Leaves a message for another rank, which need not wait for it yet."""
    await round.put(id, contents)


async def receive(round: Round, id: str, room: Bytes, source: int) -> None:
    """Takes a message of another rank."""
    await round.get_into(id, room, source)
