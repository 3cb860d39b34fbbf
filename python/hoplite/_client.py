"""The client for threads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from hoplite import _native
from hoplite._answers import OnProgress, T, run
from hoplite._calls import CONNECT_TIMEOUT, Calls
from hoplite._checks import AnyId, Id, Op
from hoplite._process import log_connected, may_unpickle, program_name, refuse_to_pickle
from hoplite._reports import Objects, Status, Topology
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.ref import Ref

if TYPE_CHECKING:
    from typing import Self

    from hoplite._info import ObjectInfo


class Client:
    """A connection to the store of this node.

    All methods may be called from any number of threads at once; they let other threads run while they wait or copy, and
    can be interrupted by Ctrl-C. A client belongs to the process that made it: in a forked child its methods raise
    `ForkedChild`. It cannot be pickled; pass `Ref`s instead, and call `hoplite.init()` where they arrive.

    An id is a `str` (which stands for its UTF-8 bytes), 1 to 255 `bytes`, or a `Ref`. A `Ref` names its cluster: one of
    another cluster is refused with `ClusterMismatch`.

    A timeout is in seconds; `None` waits for ever. By default it is what `$HOPLITE_TIMEOUT` said when the process first
    connected (`30s`, `5min`, a number of seconds, or `never`), or else 5 minutes. A call that has waited for 10 s logs one
    warning with the logger `hoplite`, which says what is missing.

    If the store was started anew, the next call connects to it. A call in flight when the connection breaks raises
    `ConnectionLost`, whose `retryable` says if it may be made again. If no store comes back within the timeout of connecting
    (5 s), the call raises `ConnectFailed`, and so do later ones, at once, until there is a store again. Any method may raise
    these and `ForkedChild`, and `TypeError` before anything is sent.
    """

    __slots__ = ("__weakref__", "_calls", "_for_owners", "_native", "_process", "_socket")

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = CONNECT_TIMEOUT,
        allow_pickle: bool | None = None,
    ) -> None:
        """Connects; see `hoplite.connect`."""
        allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle
        socket = _native.default_socket_path() if socket is None else socket
        self._native = _native.connect(socket, timeout, program_name(), True)
        self._calls = Calls(self._native, allow_pickle)
        self._socket = os.fspath(socket)
        self._process = self._native.process
        self._for_owners: _native.Client | None = None
        log_connected(self._native, self._socket)

    @property
    def socket(self) -> str:
        """Where the store listens."""
        return self._socket

    @property
    def node(self) -> str:
        """The name of the node whose store this is."""
        return self._native.node

    @property
    def cluster(self) -> str:
        """The name of the cluster of the store."""
        return self._native.cluster

    @property
    def allow_pickle(self) -> bool:
        """False if this client refuses values that were stored as pickles; see `hoplite.connect`."""
        return self._calls.allow_pickle

    @property
    def usable(self) -> bool:
        """True if it is of this process and not closed, and its connection is not known to be lost.

        A call of one that has lost its connection connects again, if it can.
        """
        return self._native.usable

    @overload
    def put(
        self,
        id: Id | None,
        value: bytearray | memoryview,
        timeout: TimeLimit = "default",
        *,
        confirm: bool = False,
        progress: OnProgress = None,
    ) -> Ref[memoryview]: ...
    @overload
    def put(
        self,
        id: Id | None,
        value: T,
        timeout: TimeLimit = "default",
        *,
        confirm: bool = False,
        progress: OnProgress = None,
    ) -> Ref[T]: ...
    def put(
        self,
        id: Id | None,
        value: object,
        timeout: TimeLimit = "default",
        *,
        confirm: bool = False,
        progress: OnProgress = None,
    ) -> Ref[Any]:
        """Stores a value under `id`, and returns a handle of it. To put the same value again is no error.

        Its bytes are copied once, into the memory of the store, from where others get them while they are still being
        copied. An array that is not contiguous is copied twice.

        Args:
            id: the name; None for a new one.
            value: an array of numpy, torch or JAX, or of anything else that has DLPack or the buffer protocol; `bytes`; a
                table or array of Arrow; a frame or series of polars; any other value that can be pickled. Arrays in it are
                not pickled but put as they are. With the package cloudpickle, functions and classes of `__main__` can be
                put, too.
            confirm: whether to wait until the directory knows an object of less than 64 KiB, as it does of larger ones.
                Without it, `contains` and `stat` may not know it for a moment, and a put of another value under the same id
                at the same time on another node goes unnoticed here.
            progress: as for `get`, while the bytes are copied.
        Raises:
            AlreadyExists, StoreFull, ObjectTooLarge, InvalidId, Timeout; TypeError for a value that cannot be put;
            PickleRefused for a value that needs a pickle, if this client refuses these.
        """
        ref = run(self._calls.put(id, value, timeout, confirm=confirm, progress=progress))
        ref._client = self
        return ref

    def ref(self, id: str | bytes) -> Ref[Any]:
        """A handle of an object of this cluster that was put elsewhere, or will be. Asks nobody."""
        return Ref(id, cluster=self.cluster, client=self)

    @overload
    def get(
        self,
        id: Ref[T],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
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
        progress: OnProgress = None,
    ) -> Any: ...
    def get(
        self,
        id: Id,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> Any:
        """Waits for the object, fetches it if need be, and returns it as what it was put.

        An array is read-only and in the memory of the store, which keeps it as long as the array, or anything made of it
        without a copy, is there. So are the arrays in a pickled value. A torch tensor is a private copy, since
        torch has no read-only tensors; `bytes` are, too.

        Args:
            copy: True: the value is private and may be written to; it is copied while it arrives. False: nothing is
                copied; `bytes` come as a `memoryview`, and **to write to a tensor then ends the process**.
            framework: "numpy", "torch" or "jax": as what arrays come, if not as what they were put. What a reduce made
                counts as put by numpy.
            progress: a function that hears of the progress, some times a second and once in the end: the bytes that have
                arrived, or been copied, and the bytes of all objects that the call has begun to move. It is called in this
                thread. An exception that it raises cancels the call, and is raised here.
        Raises:
            PickleRefused: if the value was stored as a pickle, and this client refuses these.
            InvalidMetadata: if the object's header is not one that a `put` makes.
            Timeout, ObjectLost, Deleted, StoreFull, ObjectTooLarge.
        """
        return run(self._calls.get(id, timeout, copy, framework, progress=progress))

    def get_into(
        self, id: Id, out: object, timeout: TimeLimit = "default", *, progress: OnProgress = None
    ) -> int:
        """Copies the object into `out` while it arrives, and returns its size in bytes.

        Args:
            out: a contiguous array or tensor of the dtype and shape of the object; or a buffer of bytes, such as a
                `bytearray`, into whose front the bytes of any object are copied.
            progress: as for `get`.
        Raises:
            TypeMismatch: if `out` is another kind of array than the object.
            BufferTooSmall; and what `get` raises. After an error, the contents of `out` mean nothing.
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
        timeout: TimeLimit = "default",
        progress: OnProgress = None,
    ) -> list[AnyId]:
        """Reduces equally shaped arrays element by element into the new object `target`.

        The sources are combined where they are, in the stores, while they arrive; only results move. Integers wrap around,
        as in numpy; float16 and bfloat16 are rounded after every operation.

        Args:
            target: id of the object to create; it becomes readable, as a stream, before the reduce is done.
            sources: ids of the inputs, each of the same shape and dtype; they need not exist yet.
            op: "sum", "min", "max" or "prod". Float sums may differ by rounding between runs.
            num_objects: reduce only the first so many sources to become ready; None means all.
            deterministic: combine in the order of `sources`, for the same bits in every run; slower.
            progress: as for `get`: the bytes of the target that are made.
        Returns:
            The sources that were reduced, in the order in which they joined.
        Raises:
            TypeMismatch, AlreadyExists, ObjectLost, DuplicateId, InvalidRequest, StoreFull, Timeout.
        """
        return run(
            self._calls.reduce(
                target,
                sources,
                op,
                num_objects=num_objects,
                deterministic=deterministic,
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
        """Gets several objects at once, in the order of `ids`; see `get`.

        Raises:
            What `get` raises, as soon as that is known of one of them.
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
        """Puts `value` under `ids[rank]`, and gets the objects of all participants, in the order of `ids`.

        Each participant calls this with the same ids and its own rank, in its own time. The objects stay until somebody
        deletes them.

        Raises:
            What `put` and `get` raise.
        """
        return run(self._calls.allgather(ids, rank, value, timeout, copy, framework, progress=progress))

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
        """Reduces the arrays of all participants, and returns the result to each of them, as a private array.

        Every participant calls this with the same `target`, the same sources in the same order, and its own `rank`, its
        index among them; in its own time, for there is no group to form. All get the same bits. The nodes divide
        the work, so that none receives more than twice the array.

        Args:
            target: a new id for this round. It stays until it is deleted: `delete_allreduce`, once all participants have
                their result.
            sources: an id for each participant.
            value: this participant's array, to be put under `sources[rank]`; None if it was put already.
            out: where to put the result, instead of in a new array: a contiguous one like the sources.
            progress: as for `get`: the bytes of the result that are copied out.
        Raises:
            TypeMismatch, ObjectLost, InvalidRequest, Timeout; and what `put` raises.
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
        """Reduces the arrays of all participants, and returns one part of the result to each of them, as a private array.

        Of n participants, that of rank k gets the k-th of n equal parts along the first axis. Every participant calls this
        as `allreduce`, with the same arguments. Each node sends and receives the array once, less one part.

        Args:
            out: where to put the part: a contiguous array of its shape and dtype.
        Raises:
            InvalidRequest: if the first axis cannot be divided so; and what `allreduce` raises. Some participants may have
                an error, and others their part.
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
        """Copies the arrays of all participants, of one shape, into `out` while they arrive. Returns their size in bytes.

        Every participant calls this as `allreduce`, with the same target and sources, and its own rank and `out`. Each node
        sends and receives what goes into `out`, less its own array.

        Args:
            target: a new id for this round; like the sources, it stays until it is deleted: `delete_allreduce`.
            out: a contiguous array of that dtype, for the arrays as `np.stack` or `np.concatenate` joins them; or a
                buffer of bytes.
            value: this participant's array, to be put under `sources[rank]`; None if it was put already.
        Raises:
            TypeMismatch: if `out` is not like the arrays, or these are not alike. InvalidRequest, BufferTooSmall,
            ObjectLost, Timeout, and what `put` raises. After an error, the contents of `out` mean nothing.
        """
        return run(
            self._calls.allgather_into(target, sources, rank, out, value, timeout=timeout, progress=progress)
        )

    def delete_allreduce(self, target: Id, sources: Iterable[Id], timeout: TimeLimit = "default") -> None:
        """Deletes what an allreduce, reduce_scatter or allgather_into has left: its sources and its target."""
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
        """Gives `values[k]` to participant k, and returns what each of them gives to this one, in the order of the ranks.

        Every participant calls this with the same `name`, its own `rank`, and a value for each participant, itself too; in
        its own time. Returns when all have what is for them. Each node sends and receives what its participant has for the
        others, once.

        Args:
            name: a new id for this round, at most 200 bytes or so: those of the values begin with it. It may be used again
                once all participants have returned.
            values: what `put` takes. They may differ in shape and kind; if all participants give arrays of one dtype and
                shape, the stores exchange them at once, and it is fastest.
            copy, framework, progress: as for `get`.
        Raises:
            RanksMissing: names participants that were waited for in vain; what `put` and `get` raise;
            ValueError if there is no such rank. Then values may be left, under ids that begin with `name` and a slash.
        """
        return run(
            self._calls.all_to_all(
                name, values, rank, timeout=timeout, copy=copy, framework=framework, progress=progress
            )
        )

    def barrier(self, name: Id, size: int, rank: int, timeout: TimeLimit = "default") -> None:
        """Waits until `size` participants have called this with the same `name`, each with its own `rank`.

        Args:
            name: a new id for this round. It stays, as an object without bytes, until somebody deletes it who knows that
                all have returned, say after a later round.
        Raises:
            RanksMissing: names all that have not come in time; they may still come, and this rank may call again.
            AlreadyExists: if the name was used before; ValueError if there is no such rank.
        """
        run(self._calls.barrier(name, size, rank, timeout))

    def delete(self, ids: Id | Iterable[Id], timeout: TimeLimit = "default") -> int:
        """Removes every copy of one object, or of several, and returns how many of them there were.

        Arrays that were got stay readable.

        Raises:
            Timeout: if not all copies are known to be gone in time.
        """
        return run(self._calls.delete(ids, timeout))

    def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: TimeLimit = "default"
    ) -> tuple[list[AnyId], list[AnyId]]:
        """Waits until `num` of the objects (None: all) are available somewhere in the cluster.

        Returns:
            Those that are, and those that are not, in the order of `ids`. If the timeout passes first, the former are
            fewer than `num`; that is no error. With a timeout of zero, those that are available now: the directory is
            asked once, and has 5 s to answer.
        Raises:
            InvalidRequest: if there are fewer ids than `num`.
        """
        return run(self._calls.wait(ids, num, timeout))

    def contains(self, id: Id) -> bool:
        """Whether all bytes of the object are somewhere in the cluster."""
        return run(self._calls.contains(id))

    def stat(self, id: Id) -> ObjectInfo | None:
        """What is known of an object: its size and type, where it is, and how it got there; None if there is none.

        Raises:
            Unavailable: if the directory cannot be asked.
        """
        return run(self._calls.stat(id))

    def list(self, prefix: str | bytes = b"") -> Objects:
        """The objects of the cluster whose id begins with `prefix`, in the order of their ids, page by page.

        What was put without `confirm` may be missing for some milliseconds: the directory hears of it while `put` returns.
        Returns an iterator. A notebook shows the first objects as a table.

        Raises:
            Unavailable: if a shard of the directory cannot be asked.
        """
        return Objects(lambda after: run(self._calls.page(prefix, after)))

    def status(self) -> Status:
        """The counters of this node's store: memory, copies, transfers. A notebook shows them as tables."""
        return run(self._calls.status())

    def topology(self) -> Topology:
        """Returns the links from this node's store to others, as its transfers show them, the slowest first.

        A notebook shows them as a table. `hoplite topology show` prints the same.
        """
        return run(self._calls.topology())

    def close(self) -> None:
        """Ends the connection. Arrays that were got stay readable; they, and owners, keep it open until they are gone."""
        self._for_owners = None
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise refuse_to_pickle()

    def __repr__(self) -> str:
        return f"<hoplite.Client of node {self.node!r}>"

    def _outlived(self) -> _native.Client:
        """The connection for owners, which delete their objects also when this client is closed. One for all of them."""
        if self._for_owners is None:
            self._for_owners = self._native.share()
        return self._for_owners


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT,
    allow_pickle: bool | None = None,
) -> Client:
    """Connects to the store of this node.

    Args:
        socket: where it listens; None for `$HOPLITE_SOCKET`, or where a store listens that was not told.
        allow_pickle: False refuses, with `PickleRefused`, values that were stored as pickles: whoever may put
            objects can run any code in a process that reads their pickles. It also refuses to put values that need a
            pickle. Arrays, tensors, bytes, and tables of Arrow and polars need none. None for what
            `$HOPLITE_ALLOW_PICKLE` says, 1 or 0; without that, True.
    Raises:
        ConnectFailed: says what is wrong with the path, or with who listens there.
    """
    return Client(socket, timeout=timeout, allow_pickle=allow_pickle)
