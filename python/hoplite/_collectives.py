from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from hoplite._answers import OnProgress, T, run
from hoplite._checks import AnyId, Id, Op
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.ref import Ref

if TYPE_CHECKING:
    from hoplite._calls import Calls


class Collectives:
    __slots__ = ()

    _calls: Calls

    def reduce(
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
        """Combines arrays element by element into the new object `target`.

        Blocks until the target is complete. The stores combine arrays while they arrive. Integers
        wrap around. float16 and bfloat16 are rounded after every operation.

        Args:
            target: The id of the new object.
            sources: The ids of arrays of one dtype and shape. They need not exist yet.
            op: `"sum"`, `"min"`, `"max"` or `"prod"`.
            num_objects: Combine only this number of sources, the first ready ones; `None`
                means all.
            deterministic: Combine in the order of `sources`, with the same bits in every run;
                slower.
            replicas: As for `put`.
            progress: As for `get`, for the bytes of the result.

        Returns:
            The sources that were combined, in the order in which they joined.

        Raises:
            TypeMismatch: Dtypes, shapes or sizes differ, or cannot be combined.
            AlreadyExists: The target exists.
            ObjectLost: A needed source is gone.
            DuplicateId: A source is named twice.
            InvalidRequest: There are fewer sources than `num_objects`, or none.
            StoreFull: There was no room for the target.
            QuotaExceeded: As for `put`.
            Timeout: Sources were missing; `missing_ids` names them.

        Examples:
            >>> for worker in range(3):
            ...     ref = client.put(f"gradient/{worker}", np.full(4, worker, np.float32))
            >>> client.reduce("sum", ["gradient/0", "gradient/1", "gradient/2"], deterministic=True)
            ['gradient/0', 'gradient/1', 'gradient/2']
            >>> client.get("sum")
            array([3., 3., 3., 3.], dtype=float32)
            >>> len(client.reduce("first", ["gradient/0", "gradient/1", "gradient/2"], num_objects=2))
            2
        """
        return run(
            self._calls.reduce(
                target,
                sources,
                op,
                num_objects=num_objects,
                deterministic=deterministic,
                replicas=replicas,
                timeout=timeout,
                progress=progress,
            )
        )

    @overload
    def gather(
        self,
        ids: Iterable[Ref[T]],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        progress: OnProgress = None,
    ) -> list[T]: ...
    @overload
    def gather(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> list[Any]: ...
    def gather(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> list[Any]:
        """Gets several objects at once, in the order of `ids`.

        Blocks until all are on this node. Arguments are as for `get`.

        Args:
            ids: The objects; they need not exist yet.

        Raises:
            Timeout: As for `get`, which has more errors. The first one ends the call.

        Examples:
            >>> refs = [client.put(None, np.full(2, k)) for k in range(3)]
            >>> [array.sum() for array in client.gather(refs)]
            [np.int64(0), np.int64(2), np.int64(4)]
        """
        return run(self._calls.gather(ids, timeout, copy, framework, progress=progress))

    def allgather(
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
        """Puts `value` under `ids[rank]`, and gets the objects of all participants.

        Each participant calls this with the same ids and its rank, at any time. Blocks until all
        objects are here; they stay until they are deleted. Other arguments are as for `get`.

        Args:
            ids: An id for each participant.
            rank: The index of this participant in `ids`.
            value: Any value that `put` takes.

        Returns:
            The values of all participants, in the order of `ids`.

        Raises:
            Timeout: As for `put` and `get`, which have more errors.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> def participant(rank):
            ...     return client.allgather(["name/0", "name/1"], rank, f"rank {rank}")
            >>> with ThreadPoolExecutor() as pool:
            ...     list(pool.map(participant, range(2)))
            [['rank 0', 'rank 1'], ['rank 0', 'rank 1']]
        """
        return run(
            self._calls.allgather(ids, rank, value, timeout, copy, framework, progress=progress)
        )

    def allreduce(
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
        """Combines the arrays of all participants, and returns the result to each of them.

        Each participant calls this with the same target and sources, in the same order, and its
        rank, at any time. Blocks until the result is here. All get the same bits. Each node sends
        and receives at most twice the array's size.

        Args:
            target: A new id for this round. The object stays; use `delete_allreduce` once all have
                their result.
            sources: An id for each participant.
            rank: The index of this participant in `sources`.
            value: The array of this participant, put under `sources[rank]`; `None` if that object
                exists.
            op: As for `reduce`.
            deterministic: As for `reduce`.
            out: A contiguous array like the sources, for the result; `None` for a new one.
            progress: As for `get`, for the bytes of the result.

        Returns:
            A private array, or `out`.

        Raises:
            TypeMismatch: The arrays, or the arguments of the participants, differ.
            ObjectLost: A source is gone.
            ValueError: No source has this rank.
            Timeout: Participants were missing; `missing_ranks` names them.
            StoreFull: The store of rank 0 had no room for the result.
            QuotaExceeded: As for `put`, at this store.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> sources = ["gradient/0", "gradient/1"]
            >>> def participant(rank):
            ...     return client.allreduce("sum", sources, rank, np.full(3, rank + 1.0))
            >>> with ThreadPoolExecutor() as pool:
            ...     list(pool.map(participant, range(2)))
            [array([3., 3., 3.]), array([3., 3., 3.])]
            >>> client.delete_allreduce("sum", sources)
        """
        return run(
            self._calls.allreduce(
                target,
                sources,
                rank,
                value,
                op,
                out=out,
                deterministic=deterministic,
                timeout=timeout,
                progress=progress,
            )
        )

    def reduce_scatter(
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
        """Combines the arrays of all participants, and returns one part of the result to each.

        Of n participants, rank k gets the k-th of n equal parts along the first axis. Arguments are
        as for `allreduce`. Blocks until the part is on this node. Each node sends and receives the
        array's size less one part.

        Args:
            out: A contiguous array with the dtype and shape of the part; `None` for a new one.

        Returns:
            A private array, or `out`.

        Raises:
            InvalidRequest: The first axis cannot be divided by the number of participants.
            TypeMismatch: As for `allreduce`, which has more errors. Some participants may have an
                error, and others their part.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> sources = ["gradient/0", "gradient/1"]
            >>> def participant(rank):
            ...     return client.reduce_scatter("parts", sources, rank, np.arange(4.0))
            >>> with ThreadPoolExecutor() as pool:
            ...     list(pool.map(participant, range(2)))
            [array([0., 2.]), array([4., 6.])]
        """
        return run(
            self._calls.reduce_scatter(
                target,
                sources,
                rank,
                value,
                op,
                out=out,
                deterministic=deterministic,
                timeout=timeout,
                progress=progress,
            )
        )

    def allgather_into(
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
        """Copies the arrays of all participants into `out` while they arrive.

        Arguments are as for `allreduce`. Blocks until all arrays, of one dtype and shape, are here.
        Each node receives `out`, less its own array.

        Args:
            out: A contiguous array of that dtype, in the shape of `np.stack` or `np.concatenate`;
                or a buffer of bytes.

        Returns:
            The size of all arrays in bytes.

        Raises:
            TypeMismatch: The arrays differ from each other, or from `out`.
            BufferTooSmall: The arrays are larger than `out`.
            ValueError: No source has this rank.
            ObjectLost: A source is gone.
            Timeout: Participants were missing. After an error, `out` is undefined.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> sources = ["row/0", "row/1"]
            >>> def participant(rank):
            ...     out = np.empty((2, 3))
            ...     size = client.allgather_into("rows", sources, rank, out, np.full(3, float(rank)))
            ...     return size, out.sum()
            >>> with ThreadPoolExecutor() as pool:
            ...     list(pool.map(participant, range(2)))
            [(48, np.float64(3.0)), (48, np.float64(3.0))]
        """
        return run(
            self._calls.allgather_into(
                target, sources, rank, out, value, timeout=timeout, progress=progress
            )
        )

    def delete_allreduce(
        self, target: Id, sources: Iterable[Id], timeout: TimeLimit = "default"
    ) -> None:
        """Deletes the sources and the target of an allreduce, reduce_scatter or allgather_into.

        Blocks until all copies are gone. Call it once, after all participants have returned.

        Raises:
            Timeout: Not all copies are known to be gone in time.

        Examples:
            >>> total = client.allreduce("sum", ["only"], 0, np.ones(2))
            >>> client.delete_allreduce("sum", ["only"])
            >>> client.contains("sum")
            False
        """
        run(self._calls.delete_allreduce(target, sources, timeout))

    def all_to_all(
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
        """Sends `values[k]` to participant k, and returns the values that participants send to this
        one.

        Each participant calls this with the same name, its rank, and a value for each participant,
        including itself, at any time. Blocks until all have their values. Arrays of one dtype and
        shape are fastest. Other arguments are as for `get`.

        Args:
            name: A new id for this round, of at most about 200 bytes; free again after all have
                returned.
            values: Values of any kind that `put` takes, one for each participant.

        Returns:
            A value from each participant, in the order of the ranks.

        Raises:
            RanksMissing: Names participants that did not come in time.
            ValueError: There is no such rank.
            Timeout: As for `put` and `get`, which have more errors. Objects may stay under ids
                that begin with `name` and a slash.

        Examples:
            >>> from concurrent.futures import ThreadPoolExecutor
            >>> def participant(rank):
            ...     return client.all_to_all("mail", [f"{rank} to {k}" for k in range(2)], rank)
            >>> with ThreadPoolExecutor() as pool:
            ...     list(pool.map(participant, range(2)))
            [['0 to 0', '1 to 0'], ['0 to 1', '1 to 1']]
        """
        return run(
            self._calls.all_to_all(
                name,
                values,
                rank,
                timeout=timeout,
                copy=copy,
                framework=framework,
                progress=progress,
            )
        )

    def barrier(self, name: Id, size: int, rank: int, timeout: TimeLimit = "default") -> None:
        """Waits until `size` participants have called this with the same name.

        Args:
            name: A new id for this round. It stays as an empty object; delete it after a later
                round.
            size: The number of participants.
            rank: The index of this participant, from 0.

        Raises:
            RanksMissing: Names all participants that did not come in time. They may still come, and
                this rank may call again.
            AlreadyExists: The name was used before.
            ValueError: There is no such rank.

        Examples:
            >>> client.barrier("alone", 1, 0)
            >>> client.barrier("together", 2, 0, timeout=0.2)
            Traceback (most recent call last):
            hoplite.errors.RanksMissing: ...
        """
        run(self._calls.barrier(name, size, rank, timeout))
