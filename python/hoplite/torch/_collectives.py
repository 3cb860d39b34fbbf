"""The collectives as puts, gets and reduces of objects. Nothing here knows of torch: tensors are buffers of bytes.

All ranks of a group call the same function with the same arguments but their own buffers. An object of a collective is called
after the group, the number of the collective, its part in it and a rank, so that nobody has to ask for names. With n ranks
and buffers of S bytes, each on a node of its own, a node receives and sends at most, in so many steps one after the other:

| collective | a node receives | it sends | steps |
| --- | --- | --- | --- |
| broadcast | S | S, in whatever tree comes about | 1 put, 1 get |
| reduce, at the root | S | S | 1 put, 1 reduce along a chain or tree |
| allreduce | 2S (n-1)/n; S, below 1 MiB or 3 ranks | as much | 1 put, then reduces and gets that overlap |
| reduce_scatter, of n parts of S | S, and what the chains carry | | 1 put, n reduces at once |
| allgather | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| gather, at the root | S (n-1) | | 1 put, n-1 gets at once |
| scatter, at the root | | S (n-1) | n-1 puts, 1 get |
| all_to_all, of n parts of S | S (n-1) | S (n-1) | n-1 puts, n-1 gets at once |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hoplite import _native
from hoplite._client import Op
from hoplite.errors import SizeMismatch

if TYPE_CHECKING:
    import numpy.typing as npt

    #: The memory of a tensor.
    Bytes = npt.NDArray[np.uint8]

#: From which size on a copy is left to another thread: it takes longer than to change threads, about 50 us.
COPY_ASIDE_BYTES = 1 << 20


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

    def left(self) -> float:
        """The seconds until the time limit."""
        return max(0.0, self._deadline - time.monotonic())

    async def put(self, id: str, contents: Bytes) -> None:
        self.made.append(id)
        await self.client.put(id, [contents], "opaque", None, b"", self.left(), False)

    async def put_array(self, id: str, contents: Bytes, dtype: str, length: int) -> None:
        """Puts what will be reduced."""
        self.made.append(id)
        await self.client.put(id, [contents], dtype, (length,), b"", self.left(), False)

    async def get_into(self, id: str, room: Bytes, rank: int) -> None:
        """Copies what a rank has put."""
        self.awaited[rank] = id
        size_bytes = await self.client.get_into(id, room, self.left())
        if size_bytes != room.nbytes:
            raise SizeMismatch(f"rank {rank} passed {size_bytes} bytes, and rank {self.rank} expected {room.nbytes}")


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
    """Waits until all ranks are here. An allreduce of one byte."""
    await allreduce(round, np.zeros(1, np.uint8), "u8", 1, "max")


async def allreduce(
    round: Round, buffer: Bytes, dtype: str, length: int, op: Op, part: str = ""
) -> None:
    """Replaces the buffer of each rank by the reduction of all of them. All get the same bits."""
    sources = round.ids(f"{part}s")
    target = round.id(f"{part}t", 0)
    round.awaited = dict(enumerate(sources))
    results = _native.allreduce_ids(target.encode(), round.size)
    # Each deletes what it may have made: rank 0 the target, or each its segment.
    round.made += [str(id) for id in results[1 + round.rank : 2 + round.rank]]
    if round.rank == 0:
        round.made.append(target)
    await round.put_array(sources[round.rank], buffer, dtype, length)
    await round.client.allreduce_into(target, sources, round.rank, buffer, op, False, round.left())


async def reduce(round: Round, root: int, buffer: Bytes, dtype: str, length: int, op: Op) -> None:
    """Replaces the buffer of the root by the reduction of all of them."""
    sources = round.ids("s")
    await round.put_array(sources[round.rank], buffer, dtype, length)
    if round.rank == root:
        await _reduce_into(round, sources, buffer, op, None)


async def reduce_scatter(
    round: Round, contents: Bytes, dtype: str, length: int, part_bytes: Sequence[int], out: Bytes, op: Op, part: str = ""
) -> None:
    """Each rank gets the reduction of one part of all buffers, in the order of the ranks.

    Args:
        contents: this rank's parts, one after the other.
        length: how many elements that is.
        part_bytes: the sizes of the parts, the same on all ranks.
    """
    sources = round.ids(f"{part}s")
    await round.put_array(sources[round.rank], contents, dtype, length)
    start = sum(part_bytes[: round.rank])
    stop = start + part_bytes[round.rank]
    # Its own last: it need not travel. And not all begin with the same rank.
    sources = [sources[peer] for peer in [*round.others(), round.rank]]
    await _reduce_into(round, sources, out, op, (start, stop), part)


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
