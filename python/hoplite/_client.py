"""The client for threads."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from hoplite import _native, _serialize
from hoplite._info import ObjectInfo, object_info
from hoplite._serialize import Encoded, Framework, Layout
from hoplite.errors import Superseded, TypeMismatch
from hoplite.ref import Ref, key

if TYPE_CHECKING:
    from typing import Self

#: How an object is named: `str` stands for its UTF-8 bytes.
Id = str | bytes | Ref
AnyId = TypeVar("AnyId", str, bytes, Ref, str | bytes | Ref)
#: What a reduce does with two elements.
Op = Literal["sum", "min", "max", "prod"]

#: How long connecting may take: a store answers within a millisecond.
CONNECT_TIMEOUT = 5.0
#: How long a put waits for room or for the directory, and a delete for other nodes.
DEFAULT_TIMEOUT = 30.0
#: How many objects are asked for at once while listing.
PAGE = 1000


class Client:
    """A connection to the store of this node.

    All methods may be called from any number of threads at once; they let other threads run while they wait or copy, and
    can be interrupted by Ctrl-C. A client belongs to the process that made it: in a forked child its methods raise
    `ForkedChild`. It cannot be pickled; pass `Ref`s instead, and call `hoplite.init()` where they arrive.

    An id is a `str` (which stands for its UTF-8 bytes), 1 to 255 `bytes`, or a `Ref`. A timeout is in seconds; `None` waits
    for ever. Any method may raise `ConnectionLost` and `ForkedChild`, and `TypeError` before anything is sent.
    """

    __slots__ = ("__weakref__", "_for_owners", "_native", "_process", "_socket")

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_TIMEOUT
    ) -> None:
        """Connects; see `hoplite.connect`."""
        socket = _native.default_socket_path() if socket is None else socket
        self._native = _native.connect(socket, timeout, program_name())
        self._socket = os.fspath(socket)
        self._process = self._native.process
        self._for_owners: _native.Client | None = None

    @property
    def socket(self) -> str:
        """Where the store listens."""
        return self._socket

    @property
    def node(self) -> str:
        """The name of the node whose store this is."""
        return self._native.node

    @property
    def usable(self) -> bool:
        """Whether it is of this process, not closed, and has not found its connection lost."""
        return self._native.usable

    def put(
        self, id: Id | None, value: object, timeout: float | None = DEFAULT_TIMEOUT, *, confirm: bool = False
    ) -> Ref:
        """Stores a value under `id`, and returns a handle of it. To put the same value again is no error.

        Its bytes are copied once, into the memory of the store, from where others get them while they are still being
        copied. An array that is not contiguous is copied twice.

        Args:
            id: the name; None for a new one.
            value: an array of numpy or torch, or of anything else that has DLPack or the buffer protocol; `bytes`; any other
                value that can be pickled. Arrays in it are not pickled but put as they are.
            confirm: whether to wait until the directory knows an object of less than 64 KiB, as it does of larger ones.
                Without it, `contains` and `stat` may not know it for a moment, and a put of another value under the same id
                at the same time on another node goes unnoticed here.
        Raises:
            AlreadyExists, StoreFull, ObjectTooLarge, InvalidId, Timeout; TypeError for a value that cannot be put.
        """
        encoded = _serialize.encode(value)
        name = new_id() if id is None else id
        self._native.put(name, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, timeout, confirm)
        return self._ref(name, encoded)

    def ref(self, id: str | bytes) -> Ref:
        """A handle of an object that was put elsewhere, or will be. Asks nobody."""
        return Ref(id, client=self)

    def get(
        self, id: Id, timeout: float | None = None, copy: bool | None = None, framework: Framework = None
    ) -> Any:
        """Waits for the object, fetches it if need be, and returns it as what it was put.

        An array is read-only and in the memory of the store, which keeps it as long as the array, or anything made of it
        without a copy, is there. So are the arrays in a pickled value. A torch tensor is a private copy, since
        torch has no read-only tensors; `bytes` are, too.

        Args:
            copy: True: the value is private and may be written to; it is copied while it arrives. False: nothing is
                copied; `bytes` come as a `memoryview`, and **to write to a tensor then ends the process**.
            framework: "numpy" or "torch": as what arrays come, if not as what they were put. What a reduce made counts as
                put by numpy.
        Raises:
            Timeout, ObjectLost, Deleted, StoreFull, ObjectTooLarge.
        """
        check_framework(framework)
        if copy:
            return self._get_private(id, timeout, framework)
        return _serialize.decode(self._native.get(id, timeout), copy, framework)

    def _get_private(self, id: Id, timeout: float | None, framework: Framework) -> Any:
        deadline = Deadline(timeout)
        while True:
            reader = self._native.open(id, deadline.left())
            room, finish = _serialize.destination(reader, framework)
            try:
                self._native.read(reader, room, deadline.left())
            except Superseded:
                continue
            return finish()

    def get_into(self, id: Id, out: object, timeout: float | None = None) -> int:
        """Copies the object into `out` while it arrives, and returns its size in bytes.

        Args:
            out: a contiguous array or tensor of the dtype and shape of the object; or a buffer of bytes, such as a
                `bytearray`, into whose front the bytes of any object are copied.
        Raises:
            TypeMismatch: if `out` is another kind of array than the object.
            BufferTooSmall; and what `get` raises. After an error, the contents of `out` mean nothing.
        """
        room, wanted = _serialize.as_room(out)
        if wanted.kind == "buffer":
            return self._native.get_into(id, room, timeout)
        deadline = Deadline(timeout)
        while True:
            reader = self._native.open(id, deadline.left())
            check_layout(id, reader, wanted)
            try:
                self._native.read(reader, room, deadline.left())
            except Superseded:
                continue
            return reader.nbytes

    def reduce(
        self,
        target: Id,
        sources: Iterable[AnyId],
        op: Op = "sum",
        *,
        num_objects: int | None = None,
        deterministic: bool = False,
        timeout: float | None = None,
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
        Returns:
            The sources that were reduced, in the order in which they joined.
        Raises:
            TypeMismatch, AlreadyExists, ObjectLost, DuplicateId, InvalidRequest, StoreFull, Timeout.
        """
        sources = listed(sources)
        reduced = self._native.reduce(target, sources, op, num_objects, deterministic, None, timeout)
        return as_given(reduced, sources)

    def gather(
        self,
        ids: Iterable[Id],
        timeout: float | None = None,
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """Gets several objects at once, in the order of `ids`; see `get`.

        Raises:
            What `get` raises, as soon as that is known of one of them.
        """
        check_framework(framework)
        views = self._native.gather(listed(ids), timeout)
        return [_serialize.decode(view, copy, framework) for view in views]

    def allgather(
        self,
        ids: Iterable[Id],
        rank: int,
        value: object,
        timeout: float | None = DEFAULT_TIMEOUT,
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """Puts `value` under `ids[rank]`, and gets the objects of all participants, in the order of `ids`.

        Each participant calls this with the same ids and its own rank, in its own time. The objects stay until somebody
        deletes them.

        Raises:
            What `put` and `get` raise.
        """
        check_framework(framework)
        ids = listed(ids)
        own_id(ids, rank)
        encoded = _serialize.encode(value)
        views = self._native.allgather(
            ids, rank, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, timeout
        )
        return [_serialize.decode(view, copy, framework) for view in views]

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
        timeout: float | None = None,
    ) -> Any:
        """Reduces the arrays of all participants, and returns the result to each of them, as a private array.

        Every participant calls this with the same `target`, the same sources in the same order, and its own `rank`, its
        index among them; in its own time, for there is no group to form. All get the same bits. From 1 MiB and three
        participants on, the work is divided among them, so that no node receives more than twice the array.

        Args:
            target: a new id for this round. Objects under it and under it with "/0", "/1" and so on after it stay until
                they are deleted: `delete_allreduce`, once all participants have their result.
            sources: an id for each participant.
            value: this participant's array, to be put under `sources[rank]`; None if it was put already.
            out: where to put the result, instead of in a new array: a contiguous one like the sources.
        Raises:
            TypeMismatch, ObjectLost, InvalidRequest, Timeout; and what `put` raises.
        """
        sources = listed(sources)
        deadline = Deadline(timeout)
        own = own_id(sources, rank)
        wanted = None if out is None else _serialize.as_room(out)
        _native.check_allreduce(target, sources, op, timeout)
        if value is not None:
            encoded = _serialize.encode(value)
            check_reducible(encoded)
            check_op(own, encoded, op)
            if wanted is not None:
                check_layout(own, encoded, wanted[1])
            self._native.put(
                own, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, deadline.left(), False
            )
        reader = self._native.open(own, deadline.left())
        if wanted is None:
            room, finish = _serialize.destination(reader, None)
        else:
            room = wanted[0]
            check_layout(own, reader, wanted[1])
        del reader
        self._native.allreduce_into(target, sources, rank, room, op, deterministic, deadline.left())
        return finish() if wanted is None else out

    def delete_allreduce(
        self, target: Id, sources: Iterable[Id], timeout: float | None = DEFAULT_TIMEOUT
    ) -> None:
        """Deletes what an allreduce has left: its sources, and its result wherever that is kept."""
        sources = listed(sources)
        left = _native.allreduce_ids(key(target), len(sources))
        self._native.delete([*sources, *left], timeout)

    def delete(self, ids: Id | Iterable[Id], timeout: float | None = DEFAULT_TIMEOUT) -> int:
        """Removes every copy of one object, or of several, and returns how many of them there were.

        Arrays that were got stay readable.

        Raises:
            Timeout: if not all copies are known to be gone in time.
        """
        return self._native.delete(several(ids), timeout)

    def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: float | None = None
    ) -> tuple[list[AnyId], list[AnyId]]:
        """Waits until `num` of the objects (None: all) are available somewhere in the cluster.

        Returns:
            Those that are, and those that are not, in the order of `ids`. If the timeout passes first, the former are
            fewer than `num`; that is no error. With a timeout of zero, those that are available now: the directory is
            asked once, and has 5 s to answer.
        Raises:
            InvalidRequest: if there are fewer ids than `num`.
        """
        ids = listed(ids)
        ready = self._native.wait(ids, len(ids) if num is None else num, timeout)
        return divide(ids, ready)

    def contains(self, id: Id) -> bool:
        """Whether all bytes of the object are somewhere in the cluster."""
        return self._native.contains(id)

    def stat(self, id: Id) -> ObjectInfo | None:
        """What is known of an object: its size and type, where it is, and how it got there; None if there is none.

        Raises:
            Unavailable: if the directory cannot be asked.
        """
        return object_info(self._native.describe(id))

    def list(self, prefix: str | bytes = b"") -> Iterator[ObjectInfo]:
        """The objects of the cluster whose id begins with `prefix`, in the order of their ids, page by page.

        What was put without `confirm` may be missing for some milliseconds: the directory hears of it while `put` returns.

        Raises:
            Unavailable: if a shard of the directory cannot be asked.
        """
        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        after: bytes | None = b""
        while after is not None:
            page, after = self._native.list(prefix, after, PAGE)
            yield from filter(None, map(object_info, page))

    def status(self) -> Mapping[str, Any]:
        """The counters of this node's store: memory, copies, transfers."""
        return self._native.status()

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

    def _ref(self, id: Id, encoded: Encoded) -> Ref:
        return made_ref(id, encoded, self)


def connect(socket: str | os.PathLike[str] | None = None, *, timeout: float = CONNECT_TIMEOUT) -> Client:
    """Connects to the store of this node.

    Args:
        socket: where it listens; None for `$HOPLITE_SOCKET`, or where a store listens that was not told.
    Raises:
        ConnectFailed: says what is wrong with the path, or with who listens there.
    """
    return Client(socket, timeout=timeout)


# What the client for asyncio does in the same way


class Deadline:
    """What is left of a timeout."""

    __slots__ = ("_ends",)

    def __init__(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError("a timeout is a number of seconds from 0 up, or None")
        self._ends = None if timeout is None else time.monotonic() + float(timeout)

    def left(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


def program_name() -> str:
    """How this program is called in the log of the store."""
    return os.path.basename(sys.argv[0] if sys.argv else "") or "python"


def refuse_to_pickle() -> TypeError:
    return TypeError(
        "a client belongs to its process; pass hoplite.Ref, and call hoplite.init() where it arrives"
    )


def new_id() -> str:
    """An id that nobody else has."""
    return f"py/{uuid.uuid4().hex}"


def made_ref(id: Id, encoded: Encoded, client: Client | None) -> Ref:
    name = id.id if isinstance(id, Ref) else id
    nbytes = sum(len(piece) for piece in encoded.pieces)
    return Ref(name, _serialize.dtype_name(encoded.dtype), encoded.shape, nbytes, client=client)


def text(id: Id) -> str | bytes:
    return id.id if isinstance(id, Ref) else id


def listed(ids: Iterable[AnyId]) -> list[AnyId]:
    """Several ids, as a list. A lone one is an error, since its characters are not meant."""
    if isinstance(ids, (str, bytes, Ref)):
        raise TypeError("expected several ids, such as a list of them, not one")
    return list(ids)


def several(ids: Id | Iterable[Id]) -> list[Id]:
    return [ids] if isinstance(ids, (str, bytes, Ref)) else list(ids)


def own_id(sources: list[Id], rank: int) -> Id:
    if not 0 <= rank < len(sources):
        raise ValueError(f"there is no rank {rank} among {len(sources)} participants")
    return sources[rank]


def as_given(ids: list[str | bytes], given: list[AnyId]) -> list[AnyId]:
    """The ids that the store names, as the caller named them."""
    by_key = {key(id): id for id in given}
    return [by_key[key(id)] for id in ids]


def divide(ids: list[AnyId], chosen: list[int]) -> tuple[list[AnyId], list[AnyId]]:
    indices = set(chosen)
    left = [id for index, id in enumerate(ids) if index not in indices]
    return [ids[index] for index in chosen], left


def check_framework(framework: Framework) -> None:
    if framework not in (None, "numpy", "torch"):
        raise ValueError(f'a framework is "numpy" or "torch", not {framework!r}')


def check_reducible(encoded: Encoded) -> None:
    if encoded.dtype == "opaque":
        raise TypeError("only arrays of numbers can be reduced")


def check_op(id: Id, encoded: Encoded, op: Op) -> None:
    """Checks that a reduce can do this with such elements."""
    if encoded.dtype == "bool" and op in ("sum", "prod"):
        reason = f"{op} is not defined for elements of type bool"
        raise TypeMismatch(f"object {text(id)!r} cannot be reduced: {reason}", id=text(id), reason=reason)


def check_layout(id: Id, described: _serialize.Described, wanted: Layout) -> None:
    """Checks that an object is what is to be filled with it."""
    found = _serialize.layout(described, "torch" if wanted.kind == "tensor" else "numpy")
    if (found.kind, found.dtype, found.shape) != (wanted.kind, wanted.dtype, wanted.shape):
        reason = f"it is {_describe(found)}, to be copied into {_describe(wanted)}"
        raise TypeMismatch(f"object {text(id)!r} does not fit: {reason}", id=text(id), reason=reason)


def _describe(layout: Layout) -> str:
    if layout.kind in ("array", "tensor"):
        return f"{layout.dtype}{list(layout.shape)}"
    return {"bytes": "bytes", "buffer": "bytes"}.get(layout.kind, "a pickle")
