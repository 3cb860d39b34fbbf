"""The collectives as puts, gets and reduces of objects. Arrays are buffers of bytes here.

All ranks of a group call the same function with the same arguments but their own buffers. An object of a collective is named
after the group, the number of the collective, its part in it and a rank, so that nobody has to ask for names. With n ranks
and buffers of S bytes, each on a node of its own, a node receives and sends at most, in so many steps one after the other:

| collective | a node receives | it sends | steps |
| --- | --- | --- | --- |
| broadcast | S | S, in whatever tree comes about | 1 put, 1 get |
| reduce, at the root | S | S | 1 put, 1 reduce along a chain or tree |
| allreduce, reduce_scatter, barrier, below 8 KiB and 17 ranks | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| allreduce | 2S (n-1)/n | as much | 1 put, then what the stores exchange: 2 (n-1) steps or 2 log2 n |
| reduce_scatter, of n equal parts of S | S (n-1) | as much | 1 put, then what the stores exchange: n-1 steps |
| reduce_scatter, of parts that differ, S on average | S, and what the chains carry | | 1 put, n reduces at once |
| allgather, into one buffer | S (n-1) | as much | 1 put, then what the stores exchange: n-1 steps |
| allgather, into n buffers | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| gather, at the root | S (n-1) | | 1 put, n-1 gets at once |
| scatter, at the root | | S (n-1) | n-1 puts at once, 1 get |
| all_to_all, of n parts of S | S (n-1) | S (n-1) | n-1 puts and n-1 gets at once |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hoplite._checks import Op
from hoplite._group.round import Buffer, GroupOp, Round, at_once, copy, reduced

if TYPE_CHECKING:
    from hoplite._group.round import Bytes

#: Below which size of a buffer, and up to how many ranks, each gets the buffers of all and reduces them itself: objects of
#: this size come with the answer of the directory, and a reduce by the stores takes about as long as a dozen of them.
SMALL_BYTES = 8 << 10
SMALL_RANKS = 16


def is_small(round: Round, nbytes: int) -> bool:
    """Whether it is quicker to get what all ranks have than to have the stores reduce it."""
    return nbytes < SMALL_BYTES and round.size <= SMALL_RANKS


async def meet(round: Round) -> None:
    """Waits until all ranks are here."""
    nothing = Buffer(np.empty(0, np.uint8), "u8", (0,))
    if round.size <= SMALL_RANKS:
        await _views_of_all(round, nothing, "")
    else:
        await allreduce(round, nothing, "max")


async def allreduce(round: Round, buffer: Buffer, op: GroupOp, part: str = "") -> None:
    """Replaces the buffer of each rank by the reduction of all of them. All get the same bits."""
    if (store_op := _by_the_stores(round, buffer, op)) is None:
        buffer.memory[:] = reduced(await _views_of_all(round, buffer, part), buffer.dtype, op)
        return
    target, sources = await _put_source(round, buffer, part)
    await round.client.allreduce_into(
        target, sources, round.rank, buffer.memory, store_op, False, round.left()
    )


async def _put_source(round: Round, buffer: Buffer, part: str) -> tuple[str, list[str]]:
    """Puts what this rank contributes to something that the stores make together: returns the ids of that, and of all."""
    sources = round.ids(f"{part}s")
    target = round.id(f"{part}t", 0)
    round.awaited = dict(enumerate(sources))
    if round.rank == 0:
        round.made.append(target)
    await round.put(sources[round.rank], buffer)
    return target, sources


async def reduce(round: Round, root: int, buffer: Buffer, op: GroupOp) -> None:
    """Replaces the buffer of the root by the reduction of all of them."""
    sources = round.ids("s")
    if round.rank != root:
        await round.put(sources[round.rank], buffer)
    elif (store_op := _by_the_stores(round, buffer, op)) is None:
        others = [rank for rank in range(round.size) if rank != root]
        round.awaited = {rank: sources[rank] for rank in others}
        views = await round.client.gather([sources[rank] for rank in others], round.left())
        memories = [
            round.checked(sources[rank], rank, view, buffer) for rank, view in zip(others, views, strict=True)
        ]
        memories.insert(root, buffer.memory)
        buffer.memory[:] = reduced(memories, buffer.dtype, op)
    else:
        await round.put(sources[root], buffer)
        await _reduce_into(round, list(range(round.size)), "", buffer, store_op, None)


async def reduce_scatter(
    round: Round, contents: Buffer, part_bytes: Sequence[int], out: Buffer, op: GroupOp, part: str = ""
) -> None:
    """Each rank gets the reduction of one part of all buffers, in the order of the ranks.

    Args:
        contents: this rank's parts, one after the other.
        part_bytes: the sizes of the parts, the same on all ranks.
    """
    start = sum(part_bytes[: round.rank])
    stop = start + part_bytes[round.rank]
    if (store_op := _by_the_stores(round, contents, op)) is None:
        views = await _views_of_all(round, contents, part)
        out.memory[:] = reduced([view[start:stop] for view in views], contents.dtype, op)
        return
    if len(set(part_bytes)) == 1:
        target, sources = await _put_source(round, contents, part)
        await round.client.reduce_scatter_into(
            target, sources, round.rank, out.memory, store_op, False, round.left()
        )
        return
    await round.put(round.id(f"{part}s", round.rank), contents)
    # Its own last: it need not travel. And not all begin with the same rank.
    await _reduce_into(round, [*round.others(), round.rank], part, out, store_op, (start, stop))


def _by_the_stores(round: Round, buffer: Buffer, op: GroupOp) -> Op | None:
    """What the stores do to reduce buffers; None if each rank that needs the result gets all of them."""
    if op == "and" or op == "or" or op == "xor" or is_small(round, buffer.nbytes):
        return None
    return op


async def _views_of_all(
    round: Round, contents: Buffer, part: str, expected: Sequence[Buffer] = ()
) -> list[Bytes]:
    """Puts the contents of each rank, and returns those of all, in the memory of the store."""
    ids = round.ids(f"{part}v")
    round.made.append(ids[round.rank])
    round.awaited = dict(enumerate(ids))
    views = await round.client.allgather(
        ids, round.rank, [contents.memory], contents.dtype, contents.shape, contents.user, round.left()
    )
    expected = expected or [contents] * round.size
    return [round.checked(ids[rank], rank, view, expected[rank]) for rank, view in enumerate(views)]


async def _reduce_into(
    round: Round, ranks: list[int], part: str, out: Buffer, op: Op, byte_range: tuple[int, int] | None
) -> None:
    """Has the stores reduce what the ranks have put."""
    target = round.id(f"{part}t", round.rank)
    round.made.append(target)
    round.awaited = {rank: round.id(f"{part}s", rank) for rank in ranks}
    left = round.left()
    # The target is read while it grows.
    await at_once(
        round.client.reduce(target, round.awaited.values(), op, None, False, byte_range, left),
        round.client.get_into(target, out.memory, left),
    )


async def broadcast(round: Round, root: int, buffer: Buffer) -> None:
    """Copies the buffer of the root into those of the others."""
    id = round.id("b", root)
    if round.rank == root:
        await round.put(id, buffer)
    else:
        await round.get_into(id, buffer, root)


async def allgather(
    round: Round, contents: Buffer, outs: Sequence[Buffer], part: str = "", whole: Buffer | None = None
) -> None:
    """Copies the contents of each rank into the buffer that all others have for it.

    Args:
        whole: the memory of all these buffers, if they are equally large and one after the other; on all ranks, or on none.
    """
    if is_small(round, contents.nbytes) and len({out.nbytes for out in outs}) == 1:
        for view, out in zip(await _views_of_all(round, contents, part, outs), outs, strict=True):
            out.memory[:] = view
        return
    if whole is not None:
        target, sources = await _put_source(round, contents, part)
        await round.client.allgather_into(target, sources, round.rank, whole.memory, round.left())
        return
    # Not into one buffer to be copied from: of 4 MiB with four ranks that takes 22 ms instead of 13 with one store, and as
    # long with four.
    ids = round.ids(f"{part}g")
    await round.put(ids[round.rank], contents)
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[round.rank]), *gets)


async def gather(round: Round, root: int, contents: Buffer, outs: Sequence[Buffer]) -> None:
    """Copies the contents of each rank into the buffer that the root has for it."""
    ids = round.ids("g")
    if round.rank != root:
        await round.put(ids[round.rank], contents)
        return
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[root]), *gets)


async def scatter(round: Round, root: int, contents: Sequence[Buffer], out: Buffer) -> None:
    """Copies the contents that the root has for each rank into the buffer of that rank."""
    if round.rank != root:
        await round.get_into(round.id_for("c", root, round.rank), out, root)
        return
    puts = (round.put(round.id_for("c", root, peer), contents[peer]) for peer in round.others())
    await at_once(*puts, copy(contents[root], out))


async def all_to_all(round: Round, contents: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
    """Copies the contents that each rank has for each other one into the buffer that it has for it there."""
    puts = (round.put(round.id_for("a", round.rank, peer), contents[peer]) for peer in round.others())
    gets = (round.get_into(round.id_for("a", peer, round.rank), outs[peer], peer) for peer in round.others())
    await at_once(*puts, copy(contents[round.rank], outs[round.rank]), *gets)
