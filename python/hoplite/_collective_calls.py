from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from hoplite import _native, _serialize
from hoplite._answers import OnProgress, T, followed, settled
from hoplite._checks import (
    AnyId,
    Id,
    Op,
    all_of,
    as_given,
    check_framework,
    check_gathered,
    check_layout,
    check_op,
    check_rank,
    check_reducible,
    listed,
    own_id,
    part_of,
    text,
)
from hoplite._serialize import Described, Encoded, Framework, View
from hoplite._timeouts import Deadline, TimeLimit
from hoplite.ref import Ref


class CollectiveCalls:
    __slots__ = ()

    _native: _native.Client | _native.AsyncClient
    _limit: int
    allow_pickle: bool

    def _encoded(self, id: Id, value: object) -> Encoded:
        raise NotImplementedError

    def _check_written(self, id: Id, encoded: Encoded) -> None:
        raise NotImplementedError

    async def reduce(
        self,
        target: Id,
        sources: Iterable[AnyId],
        op: Op = "sum",
        *,
        num_objects: int | None = None,
        deterministic: bool = False,
        replicas: int | None = None,
        timeout: TimeLimit = "default",
        progress: OnProgress = None,
    ) -> list[AnyId]:
        """See `hoplite.Client.reduce`. Cancelling the coroutine cancels the reduce on all nodes."""
        sources = listed(sources)
        reduced = await followed(
            self._native,
            progress,
            "reduce",
            target,
            sources,
            op,
            num_objects,
            deterministic,
            None,
            replicas or 0,
            timeout,
        )
        return as_given(reduced, sources)

    @overload
    async def gather(
        self,
        ids: Iterable[Ref[T]],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        progress: OnProgress = None,
    ) -> list[T]: ...
    @overload
    async def gather(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> list[Any]: ...
    async def gather(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> list[Any]:
        """See `hoplite.Client.gather`."""
        check_framework(framework)
        ids = listed(ids)
        views = await followed(self._native, progress, "gather", ids, timeout)
        return self._decoded(ids, views, copy, framework)

    async def allgather(
        self,
        ids: Iterable[Id],
        rank: int,
        value: object,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> list[Any]:
        """See `hoplite.Client.allgather`."""
        check_framework(framework)
        ids = listed(ids)
        own_id(ids, rank)
        encoded = self._encoded(ids[rank], value)
        pieces, dtype, shape, user = encoded
        views = await followed(
            self._native,
            progress,
            "allgather",
            ids,
            rank,
            pieces,
            dtype,
            shape,
            user,
            timeout,
        )
        return self._decoded(ids, views, copy, framework)

    def _decoded(
        self,
        ids: Iterable[Id],
        views: Iterable[View],
        copy: bool | None,
        framework: Framework,
    ) -> list[Any]:
        return [
            _serialize.decode(view, copy, framework, self.allow_pickle, text(id))
            for id, view in zip(ids, views, strict=True)
        ]

    async def allreduce(
        self,
        target: Id,
        sources: Iterable[Id],
        rank: int,
        value: object = None,
        op: Op = "sum",
        *,
        out: Any = None,
        deterministic: bool = False,
        timeout: TimeLimit = "default",
        progress: OnProgress = None,
    ) -> Any:
        """See `hoplite.Client.allreduce`."""
        perform = "allreduce_into"
        return await self._reduced(
            perform, progress, all_of, target, sources, rank, value, op, out, deterministic, timeout
        )

    async def reduce_scatter(
        self,
        target: Id,
        sources: Iterable[Id],
        rank: int,
        value: object = None,
        op: Op = "sum",
        *,
        out: Any = None,
        deterministic: bool = False,
        timeout: TimeLimit = "default",
        progress: OnProgress = None,
    ) -> Any:
        """See `hoplite.Client.reduce_scatter`."""
        perform = "reduce_scatter_into"
        return await self._reduced(
            perform,
            progress,
            part_of,
            target,
            sources,
            rank,
            value,
            op,
            out,
            deterministic,
            timeout,
        )

    async def _reduced(
        self,
        perform: str,
        progress: OnProgress,
        result_of: Callable[[Id, Described, int], Described],
        target: Id,
        sources: Iterable[Id],
        rank: int,
        value: object,
        op: Op,
        out: Any,
        deterministic: bool,
        timeout: TimeLimit,
    ) -> Any:
        sources = listed(sources)
        deadline = Deadline(timeout)
        own = own_id(sources, rank)
        wanted = None if out is None else _serialize.as_room(out)
        _native.check_allreduce(target, sources, op, timeout)
        if value is not None:
            encoded = self._encoded(own, value)
            check_reducible(encoded)
            check_op(own, encoded, op)
            result = result_of(own, encoded, len(sources))
            if wanted is not None:
                check_layout(own, result, wanted[1])
            await self._put_own(own, encoded, deadline)
        reader = await settled(self._native.open(own, deadline.left()))
        result = result_of(own, reader, len(sources))
        if wanted is None:
            room, finish = _serialize.destination(result, None, self.allow_pickle, text(own))
        else:
            room = wanted[0]
            check_layout(own, result, wanted[1])
        del reader, result
        arguments = (target, sources, rank, room, op, deterministic, deadline.left())
        await followed(self._native, progress, perform, *arguments)
        return finish() if wanted is None else out

    async def allgather_into(
        self,
        target: Id,
        sources: Iterable[Id],
        rank: int,
        out: object,
        value: object = None,
        *,
        timeout: TimeLimit = "default",
        progress: OnProgress = None,
    ) -> int:
        """See `hoplite.Client.allgather_into`."""
        sources = listed(sources)
        deadline = Deadline(timeout)
        own = own_id(sources, rank)
        room, wanted = _serialize.as_room(out)
        _native.check_allreduce(target, sources, "sum", timeout)
        if value is not None:
            encoded = self._encoded(own, value)
            check_gathered(own, encoded, len(sources), wanted)
            await self._put_own(own, encoded, deadline)
        reader = await settled(self._native.open(own, deadline.left()))
        check_gathered(own, reader, len(sources), wanted)
        del reader
        copied: int = await followed(
            self._native,
            progress,
            "allgather_into",
            target,
            sources,
            rank,
            room,
            deadline.left(),
        )
        return copied

    async def _put_own(self, id: Id, encoded: Encoded, deadline: Deadline) -> None:
        await settled(
            self._native.put(
                id,
                encoded.pieces,
                encoded.dtype,
                encoded.shape,
                encoded.user,
                deadline.left(),
                False,
            )
        )

    async def delete_allreduce(
        self, target: Id, sources: Iterable[Id], timeout: TimeLimit = "default"
    ) -> None:
        """See `hoplite.Client.delete_allreduce`."""
        await settled(self._native.delete([*listed(sources), target], timeout))

    async def all_to_all(
        self,
        name: Id,
        values: Sequence[object],
        rank: int,
        *,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        progress: OnProgress = None,
    ) -> list[Any]:
        """See `hoplite.Client.all_to_all`."""
        check_framework(framework)
        check_rank(rank, len(values))
        parts = _serialize.encode_alike(values, text(name), self._limit)
        self._check_written(name, parts[0])
        dtype, shape, user = parts[0].dtype, parts[0].shape, parts[0].user
        pieces = [part.pieces for part in parts]
        views = await followed(
            self._native,
            progress,
            "all_to_all",
            name,
            pieces,
            rank,
            dtype,
            shape,
            user,
            timeout,
        )
        return self._decoded([name] * len(views), views, copy, framework)

    async def barrier(self, name: Id, size: int, rank: int, timeout: TimeLimit = "default") -> None:
        """See `hoplite.Client.barrier`."""
        check_rank(rank, size)
        await settled(self._native.barrier(name, size, rank, timeout))
