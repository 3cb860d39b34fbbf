"""The collectives as puts, gets and reduces of objects. Arrays are buffers of bytes here.

Ids contain the group, the collective's number, the part and the rank, so every rank knows them.

The most that a node moves, and the sequential steps, for n nodes and buffers of S bytes:

| collective | received | sent | steps |
| --- | --- | --- | --- |
| broadcast | S | S, along a tree | 1 put, 1 get |
| reduce, at the root | S | S | 1 put, 1 reduce along a chain or tree |
| allreduce, reduce_scatter, barrier, below 8 KiB and 17 ranks | S (n-1) | S, passed on in trees | 1 put, n-1 gets at once |
| allreduce | 2S (n-1)/n | 2S (n-1)/n | 1 put, then 2 (n-1) or 2 log2 n steps of the stores |
| reduce_scatter, of n equal parts of S | S (n-1) | S (n-1) | 1 put, then n-1 steps of the stores |
| reduce_scatter, of unequal parts, S on average | S, and a share of the other reduces | | 1 put, n reduces at once |
| allgather, into one buffer | S (n-1) | S (n-1) | 1 put, then n-1 steps of the stores |
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

#: Below these sizes, each rank gets all ranks' buffers, which the directory sends in its answers. A
#: reduce by the stores takes as long as a dozen gets.
SMALL_BYTES = 8 << 10
SMALL_RANKS = 16


def is_small(round: Round, nbytes: int) -> bool:
    return nbytes < SMALL_BYTES and round.size <= SMALL_RANKS


async def meet(round: Round) -> None:
    nothing = Buffer(np.empty(0, np.uint8), "u8", (0,))
    if round.size <= SMALL_RANKS:
        await _views_of_all(round, nothing, "")
    else:
        await allreduce(round, nothing, "max")


async def allreduce(round: Round, buffer: Buffer, op: GroupOp, part: str = "") -> None:
    """Reduces the buffers of all ranks; each rank's buffer gets the same bits."""
    if (store_op := _by_the_stores(round, buffer, op)) is None:
        buffer.memory[:] = reduced(await _views_of_all(round, buffer, part), buffer.dtype, op)
        return
    target, sources = await _put_source(round, buffer, part)
    await round.client.allreduce_into(
        target, sources, round.rank, buffer.memory, store_op, False, round.left()
    )


async def _put_source(round: Round, buffer: Buffer, part: str) -> tuple[str, list[str]]:
    sources = round.ids(f"{part}s")
    target = round.id(f"{part}t", 0)
    round.awaited = dict(enumerate(sources))
    if round.rank == 0:
        round.made.append(target)
    await round.put(sources[round.rank], buffer)
    return target, sources


async def reduce(round: Round, root: int, buffer: Buffer, op: GroupOp) -> None:
    sources = round.ids("s")
    if round.rank != root:
        await round.put(sources[round.rank], buffer)
    elif (store_op := _by_the_stores(round, buffer, op)) is None:
        others = [rank for rank in range(round.size) if rank != root]
        round.awaited = {rank: sources[rank] for rank in others}
        views = await round.client.gather([sources[rank] for rank in others], round.left())
        memories = [
            round.checked(sources[rank], rank, view, buffer)
            for rank, view in zip(others, views, strict=True)
        ]
        memories.insert(root, buffer.memory)
        buffer.memory[:] = reduced(memories, buffer.dtype, op)
    else:
        await round.put(sources[root], buffer)
        await _reduce_into(round, list(range(round.size)), "", buffer, store_op, None)


async def reduce_scatter(
    round: Round,
    contents: Buffer,
    part_bytes: Sequence[int],
    out: Buffer,
    op: GroupOp,
    part: str = "",
) -> None:
    """Gives each rank the reduction of its part. `contents` has this rank's parts in order, and
    `part_bytes` their sizes by rank."""
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
    await _reduce_into(round, [*round.others(), round.rank], part, out, store_op, (start, stop))


def _by_the_stores(round: Round, buffer: Buffer, op: GroupOp) -> Op | None:
    if op == "and" or op == "or" or op == "xor" or is_small(round, buffer.nbytes):
        return None
    return op


async def _views_of_all(
    round: Round, contents: Buffer, part: str, expected: Sequence[Buffer] = ()
) -> list[Bytes]:
    ids = round.ids(f"{part}v")
    round.made.append(ids[round.rank])
    round.awaited = dict(enumerate(ids))
    views = await round.client.allgather(
        ids,
        round.rank,
        [contents.memory],
        contents.dtype,
        contents.shape,
        contents.user,
        round.left(),
    )
    expected = expected or [contents] * round.size
    return [round.checked(ids[rank], rank, view, expected[rank]) for rank, view in enumerate(views)]


async def _reduce_into(
    round: Round,
    ranks: list[int],
    part: str,
    out: Buffer,
    op: Op,
    byte_range: tuple[int, int] | None,
) -> None:
    target = round.id(f"{part}t", round.rank)
    round.made.append(target)
    round.awaited = {rank: round.id(f"{part}s", rank) for rank in ranks}
    left = round.left()
    await at_once(
        round.client.reduce(target, round.awaited.values(), op, None, False, byte_range, 0, left),
        round.client.get_into(target, out.memory, left),
    )


async def broadcast(round: Round, root: int, buffer: Buffer) -> None:
    id = round.id("b", root)
    if round.rank == root:
        await round.put(id, buffer)
    else:
        await round.get_into(id, buffer, root)


async def allgather(
    round: Round,
    contents: Buffer,
    outs: Sequence[Buffer],
    part: str = "",
    whole: Buffer | None = None,
) -> None:
    """Copies the contents of each rank into the matching buffer of every rank.

    `whole` is the memory of all `outs`, if adjacent and of equal size. All ranks pass it,
    or none.
    """
    if is_small(round, contents.nbytes) and len({out.nbytes for out in outs}) == 1:
        for view, out in zip(await _views_of_all(round, contents, part, outs), outs, strict=True):
            out.memory[:] = view
        return
    if whole is not None:
        target, sources = await _put_source(round, contents, part)
        await round.client.allgather_into(target, sources, round.rank, whole.memory, round.left())
        return
    # Not `allgather_into`: copies from its buffer would be needed.
    ids = round.ids(f"{part}g")
    await round.put(ids[round.rank], contents)
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[round.rank]), *gets)


async def gather(round: Round, root: int, contents: Buffer, outs: Sequence[Buffer]) -> None:
    ids = round.ids("g")
    if round.rank != root:
        await round.put(ids[round.rank], contents)
        return
    gets = (round.get_into(ids[peer], outs[peer], peer) for peer in round.others())
    await at_once(copy(contents, outs[root]), *gets)


async def scatter(round: Round, root: int, contents: Sequence[Buffer], out: Buffer) -> None:
    if round.rank != root:
        await round.get_into(round.id_for("c", root, round.rank), out, root)
        return
    puts = (round.put(round.id_for("c", root, peer), contents[peer]) for peer in round.others())
    await at_once(*puts, copy(contents[root], out))


async def all_to_all(round: Round, contents: Sequence[Buffer], outs: Sequence[Buffer]) -> None:
    puts = (
        round.put(round.id_for("a", round.rank, peer), contents[peer]) for peer in round.others()
    )
    gets = (
        round.get_into(round.id_for("a", peer, round.rank), outs[peer], peer)
        for peer in round.others()
    )
    await at_once(*puts, copy(contents[round.rank], outs[round.rank]), *gets)
