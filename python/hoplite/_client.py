"""The client for threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite import _native
from hoplite._answers import OnProgress, T, run
from hoplite._calls import CONNECT_TIMEOUT, Calls
from hoplite._checks import AnyId, Id, Op, TtlAction, owners_of
from hoplite._deletion import Deletion
from hoplite._many import Many
from hoplite._process import log_connected, may_unpickle, program_name, refuse_to_pickle
from hoplite._reports import Objects, Status, Topology
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.ref import Ref

if TYPE_CHECKING:
    from typing import Self

    from hoplite._info import ObjectInfo


class Client(Many):
    """A connection to the store of this node.

    In the examples, `client` is `hoplite.init()`, and `np` is numpy.

    * **Threads**: any number may share a client. Other threads run while a call waits or copies.
      Ctrl-C interrupts a call.
    * **Processes**: a client belongs to the process that made it. In a forked child, its methods
      raise `ForkedChild`. A client cannot be pickled: pass `Ref`s, and call `hoplite.init()` where
      they arrive.
    * **Ids**: a `str` (its UTF-8 bytes), 1 to 255 `bytes`, or a `Ref`. A `Ref` of another cluster
      raises `ClusterMismatch`.
    * **Timeouts**: in seconds; `None` waits for ever. The default is `$HOPLITE_TIMEOUT` (`30s`,
      `5min`, seconds, or `never`), read once, or else 5 minutes. After 10 s, a call warns with the
      logger `hoplite`, and names the missing object, rank or peer.
    * **Restarts**: the next call connects to the new store. A call in flight raises
      `ConnectionLost`; its `retryable` says whether to repeat the call. After 5 s without a store,
      a call raises `ConnectFailed`.

    Any method may raise `ConnectFailed`, `ConnectionLost`, `ForkedChild`, and `TypeError` for wrong
    arguments, before anything is sent.

    Examples:
        >>> client.put("squares", np.arange(4) ** 2)
        hoplite.Ref('squares', int64[4])
        >>> client.get("squares")
        array([0, 1, 4, 9])
    """

    __slots__ = ("__weakref__", "_calls", "_for_owners", "_native", "_process", "_socket")

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = CONNECT_TIMEOUT,
        allow_pickle: bool | None = None,
        owner: str | Iterable[str] = (),
    ) -> None:
        """See `hoplite.connect`."""
        allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle
        socket = _native.default_socket_path() if socket is None else socket
        self._native = _native.connect(socket, timeout, program_name(), True, owners_of(owner))
        self._calls = Calls(self._native, allow_pickle)
        self._socket = os.fspath(socket)
        self._process = self._native.process
        self._for_owners: _native.Client | None = None
        log_connected(self._native, self._socket)

    @property
    def socket(self) -> str:
        """The path of the store's socket.

        Examples:
            >>> hoplite.connect(client.socket).node == client.node
            True
        """
        return self._socket

    @property
    def node(self) -> str:
        """The name of the store's node.

        Examples:
            >>> ref = client.put("where", b"here", confirm=True)
            >>> client.node in [location.node for location in client.stat("where").locations]
            True
        """
        return self._native.node

    @property
    def cluster(self) -> str:
        """The name of the store's cluster.

        Examples:
            >>> client.put("named", b"").cluster == client.cluster
            True
        """
        return self._native.cluster

    @property
    def owner(self) -> str:
        """The owner that stands for this client, as in `put(..., owner="client")`.

        Other clients of the store may use it, too.

        Examples:
            >>> client.put("mine", b"1", owner=client.owner, confirm=True)
            hoplite.Ref('mine')
            >>> client.stat("mine").owner == client.owner
            True
        """
        return self._native.owner

    @property
    def allow_pickle(self) -> bool:
        """`False` if this client refuses pickled values; see `hoplite.connect`.

        Examples:
            >>> client.allow_pickle
            True
        """
        return self._calls.allow_pickle

    @property
    def usable(self) -> bool:
        """`True` unless the client is closed, inherited by a fork, or known to be disconnected.

        The next call of a disconnected client connects again.

        Examples:
            >>> other = hoplite.connect(client.socket)
            >>> other.usable
            True
            >>> other.close()
            >>> other.usable
            False
        """
        return self._native.usable

    @overload
    def put(
        self,
        id: Id | None,
        value: bytearray | memoryview,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[memoryview]: ...
    @overload
    def put(
        self,
        id: Id | None,
        value: T,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[T]: ...
    def put(
        self,
        id: Id | None,
        value: object,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        if_absent: Literal["quorum"] | None = None,
        progress: OnProgress = None,
    ) -> Ref[Any]:
        """Stores a value under `id`, and returns a handle.

        Blocks until the bytes are copied into the store; a full store makes it wait. A put of the
        same value under the same id succeeds.

        Args:
            id: The name; `None` for a new random one.
            value: An array of numpy, torch (also on CUDA) or JAX; a table or array of Arrow; a
                frame or series of polars; anything with DLPack or the buffer protocol; `bytes`; any
                value that can be pickled. Arrays inside it stay outside the pickle. cloudpickle, if
                installed, also pickles lambdas, and functions and classes of `__main__`.
            timeout: Seconds to wait for room, and for the copies.
            confirm: `True` waits until the directory knows the object; puts from 64 KiB on always
                do. With `False`, `contains` and `stat` may miss a small object for a moment, and a
                put of another value under its id elsewhere goes unnoticed. A number waits for that
                many of the `replicas`.
            replicas: The number of copies to keep, each on another node; `None` for the store's
                default. The call waits for all, unless `confirm` is a number.
            owner: Deletes the object 30 s after the last client of the store that holds this owner
                has gone. `"client"` stands for this client, another name for the clients that
                passed it to `hoplite.connect(owner=...)`.
            ttl: Seconds until the object ends; at most 30 days.
            ttl_action: `"delete"` ends it everywhere; `"free"` drops the copy of this store.
            if_absent: `"quorum"` requires that both directory shards of the id accept the put.
            progress: As for `get`, for the bytes that are copied into the store.

        Returns:
            A handle with the id, dtype, shape and size.

        Raises:
            AlreadyExists: The id names another value.
            StoreFull: There was no room before the timeout.
            QuotaExceeded: A quota had no room before the timeout.
            ObjectTooLarge: The value can never fit.
            InvalidId: The id is empty, or longer than 255 bytes.
            Timeout: The directory did not answer, or not enough copies were made, in time.
            NotEnoughNodes: There are fewer stores than replicas.
            InvalidRequest: The owner or the ttl is not allowed, or no client holds the owner.
            Draining: The store is about to stop.
            Unavailable: A directory shard that `if_absent` needs cannot be reached.
            PickleRefused: The value needs a pickle, and this client refuses pickles.
            TypeError: The value cannot be stored, such as a tensor on an accelerator without CUDA.

        Examples:
            >>> client.put("weights/1", np.zeros((2, 3), np.float32))
            hoplite.Ref('weights/1', float32[2, 3])
            >>> ref = client.put(None, {"step": 7, "mean": np.ones(3)})
            >>> client.get(ref)["step"]
            7
            >>> client.put("batch/1", b"...", owner="client", ttl=600)
            hoplite.Ref('batch/1')
        """
        ref = run(
            self._calls.put(
                id,
                value,
                timeout,
                confirm=confirm,
                replicas=replicas,
                owner=owner,
                ttl=ttl,
                ttl_action=ttl_action,
                if_absent=if_absent,
                progress=progress,
            )
        )
        ref._client = self
        return ref

    def ref(self, id: str | bytes) -> Ref[Any]:
        """Returns a handle of an existing or future object, without sending anything.

        Examples:
            >>> ref = client.ref("later")
            >>> client.put("later", b"now")
            hoplite.Ref('later')
            >>> ref.get()
            b'now'
        """
        return Ref(id, cluster=self.cluster, client=self)

    @overload
    def get(
        self,
        id: Ref[T],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> T: ...
    @overload
    def get(
        self,
        id: Id,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any: ...
    def get(
        self,
        id: Id,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any:
        """Waits for an object, and returns its value.

        Blocks until the value is on this node. Arrays, also inside a pickled value, are read-only
        and in shared memory, which the store keeps while an array or a view lives. Tensors,
        `bytes`, and arrays of at most 4 KiB are private copies.

        Args:
            id: The object; it need not exist yet.
            copy: `True` returns a private, writable value, copied while it arrives. `False` copies
                nothing: `bytes` come as a `memoryview`, and tensors are in shared memory.
                **Writing to such a tensor ends the process.**
            framework: `"numpy"`, `"torch"` or `"jax"`: the kind of returned arrays, by default the
                kind that was put. Reduces make arrays of numpy.
            allow_stale: `True` also accepts a complete copy on this node, with a
                `hoplite.StaleWarning`, while no directory shard confirms that the object exists.
            progress: Called in this thread a few times a second, and at the end, with the bytes
                moved so far, and in total. An exception cancels the call.

        Returns:
            The value, with the shape and dtype that were put.

        Raises:
            Timeout: The object did not come in time.
            ObjectLost: Every copy is gone.
            Deleted: The object was deleted during the call.
            StoreFull: There was no room for a copy on this node.
            ObjectTooLarge: The object does not fit into the store.
            PickleRefused: The value is a pickle, and this client refuses pickles.
            InvalidMetadata: No `put` made the header of the object.

        Examples:
            >>> client.put("image", np.ones((640, 480, 3), np.uint8))
            hoplite.Ref('image', uint8[640, 480, 3])
            >>> image = client.get("image")
            >>> image.shape, image.flags.writeable
            ((640, 480, 3), False)
            >>> client.get("image", copy=True).flags.writeable
            True
            >>> client.get("absent", timeout=0.1)
            Traceback (most recent call last):
            hoplite.errors.Timeout: ...
        """
        return run(
            self._calls.get(
                id, timeout, copy, framework, allow_stale=allow_stale, progress=progress
            )
        )

    def get_into(
        self, id: Id, out: object, timeout: TimeLimit = "default", *, progress: OnProgress = None
    ) -> int:
        """Copies an object into your array while it arrives.

        Blocks as `get` does.

        Args:
            id: The object; it need not exist yet.
            out: A contiguous array or tensor with the object's dtype and shape, also on a CUDA
                device; or a buffer of bytes, such as a `bytearray`, filled from its start with any
                object.
            progress: As for `get`.

        Returns:
            The size of the object in bytes.

        Raises:
            TypeMismatch: The dtype or shape of `out` differs from the object.
            BufferTooSmall: The object is larger than `out`.
            Timeout: As for `get`. After an error, `out` is undefined.

        Examples:
            >>> client.put("vector", np.arange(3.0))
            hoplite.Ref('vector', float64[3])
            >>> out = np.empty(3)
            >>> client.get_into("vector", out)
            24
            >>> out
            array([0., 1., 2.])
        """
        return run(self._calls.get_into(id, out, timeout, progress=progress))

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

    def delete(
        self,
        ids: Id | Iterable[Id],
        timeout: TimeLimit = "default",
        *,
        wait: Literal["reachable", "all"] = "reachable",
    ) -> Deletion:
        """Removes every copy of one object, or of several.

        Blocks until all copies are gone; with `wait="all"`, also until lost nodes return and drop
        theirs. Arrays that programs hold stay readable.

        Returns:
            The number of objects that existed. The result also names lost nodes that may have
            copies.

        Raises:
            Timeout: Not all copies are known to be gone in time. `peers` names the nodes.

        Examples:
            >>> ref = client.put("old", b"1", confirm=True)
            >>> client.delete(["old", "absent"])
            1
        """
        return run(self._calls.delete(ids, timeout, wait=wait))

    def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: TimeLimit = "default"
    ) -> tuple[list[AnyId], list[AnyId]]:
        """Waits until `num` of the objects are available somewhere in the cluster.

        Args:
            num: The number to wait for; `None` means all.
            timeout: Seconds to wait. Zero sends one request to the directory, which has 5 s to
                answer.

        Returns:
            Two lists in the order of `ids`: the available objects, and the others. After a timeout
            the first has fewer than `num`, without an error.

        Raises:
            InvalidRequest: There are fewer ids than `num`.

        Examples:
            >>> ref = client.put("ready", b"1", confirm=True)
            >>> client.wait(["ready", "absent"], num=1)
            (['ready'], ['absent'])
            >>> client.wait(["absent"], timeout=0)
            ([], ['absent'])
        """
        return run(self._calls.wait(ids, num, timeout))

    def contains(self, id: Id) -> bool:
        """Returns `True` if all bytes of the object are somewhere in the cluster.

        Blocks for one request to the directory.

        Examples:
            >>> ref = client.put("here", b"1", confirm=True)
            >>> client.contains("here"), client.contains("absent")
            (True, False)
        """
        return run(self._calls.contains(id))

    def stat(self, id: Id) -> ObjectInfo | None:
        """Returns the size, type, copies and history of an object; `None` if there is none.

        Blocks for one request to the directory.

        Raises:
            Unavailable: The directory cannot be reached.

        Examples:
            >>> ref = client.put("grid", np.zeros((2, 2)), confirm=True)
            >>> info = client.stat("grid")
            >>> info.nbytes, info.dtype, info.shape, info.available
            (32, 'float64', (2, 2), True)
            >>> client.stat("absent") is None
            True
        """
        return run(self._calls.stat(id))

    def list(self, prefix: str | bytes = b"") -> Objects:
        """Yields the objects of the cluster whose id begins with `prefix`, ordered by id.

        Blocks for each page. An object put without `confirm` may be missing for some milliseconds.

        Raises:
            Unavailable: A shard of the directory cannot be reached.

        Examples:
            >>> refs = [client.put(f"list/{k}", b"1", confirm=True) for k in range(2)]
            >>> [info.id for info in client.list("list/")]
            ['list/0', 'list/1']
        """
        return Objects(lambda after: run(self._calls.page(prefix, after)))

    def status(self) -> Status:
        """Returns the counters of the store, such as memory in bytes.

        Blocks for one request to the store.

        Examples:
            >>> status = client.status()
            >>> 0 < status["free_bytes"] <= status["capacity_bytes"]
            True
        """
        return run(self._calls.status())

    def topology(self) -> Topology:
        """Returns the links of the store to other stores, the slowest first, as transfers measured
        them.

        Blocks for one request to the store.

        Examples:
            >>> client.topology()    # one node has no links
            ()
        """
        return run(self._calls.topology())

    def close(self) -> None:
        """Ends the connection.

        Arrays stay readable. They and owning handles keep the connection open.

        Examples:
            >>> with hoplite.connect() as other:    # closes at the end of the block
            ...     ref = other.put("closed", b"1")
            >>> other.usable
            False
        """
        self._for_owners = None
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise refuse_to_pickle()

    def __repr__(self) -> str:
        return f"<hoplite.Client of node {self.node!r}>"

    def _outlived(self) -> _native.Client:
        """Returns the connection of owning handles, which outlives this client."""
        if self._for_owners is None:
            self._for_owners = self._native.share()
        return self._for_owners


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT,
    allow_pickle: bool | None = None,
    owner: str | Iterable[str] = (),
) -> Client:
    """Returns a new client of a store of this machine.

    Blocks until the store has answered, for at most `timeout` seconds.

    Args:
        socket: The path of the socket; `None` for `$HOPLITE_SOCKET`, or the default socket.
        timeout: Seconds for connecting, and for a restarted store to come back.
        allow_pickle: `False` refuses to write and read pickles, because reading one runs code of
            its writer. Arrays, tensors, `bytes`, tables of Arrow and frames of polars need none.
            `None` takes `$HOPLITE_ALLOW_PICKLE` (1 or 0), or else `True`.
        owner: Up to 7 names of owners that the client holds; see `put`.

    Raises:
        ConnectFailed: There is no store, or it is not trusted; `reason` says which.
        InvalidRequest: The name of an owner is not allowed.

    Examples:
        >>> with hoplite.connect(allow_pickle=False) as careful:
        ...     ref = careful.put("pickled", {"a": 1})
        ...     careful.get("pickled")
        Traceback (most recent call last):
        hoplite.errors.PickleRefused: ...
    """
    return Client(socket, timeout=timeout, allow_pickle=allow_pickle, owner=owner)
