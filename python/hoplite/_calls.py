"""What the methods of both clients do, written once: as coroutines over a native client that blocks or returns futures.

`hoplite.aio.Client` has these methods as they are. `hoplite.Client` performs each with `run`: over a native client that
blocks, a coroutine never waits for anything.
"""

from __future__ import annotations

import os
import sys
from asyncio import Future
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from hoplite import _native, _serialize
from hoplite._serialize import Described, Encoded, Framework, Layout
from hoplite._timeouts import Deadline, TimeLimit
from hoplite.errors import InvalidRequest, PickleRefused, Superseded, TypeMismatch
from hoplite.ref import Ref, key

if TYPE_CHECKING:
    from hoplite._info import ObjectInfo

T = TypeVar("T")
#: How an object is named: `str` stands for its UTF-8 bytes.
Id = str | bytes | Ref
AnyId = TypeVar("AnyId", str, bytes, Ref, str | bytes | Ref)
#: What a reduce does with two elements.
Op = Literal["sum", "min", "max", "prod"]

#: How long connecting may take: a store answers within a millisecond.
CONNECT_TIMEOUT = 5.0
#: The variable that says if clients that are not told read values which were stored as pickles.
ALLOW_PICKLE_VARIABLE = "HOPLITE_ALLOW_PICKLE"
#: How many objects are asked for at once while listing.
PAGE = 1000


def run(call: Coroutine[Any, None, T]) -> T:
    """Performs a call over a native client that blocks."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the native client has returned a future")


async def settled(answer: T | Future[T]) -> T:
    """What a native client answers."""
    return await answer if isinstance(answer, Future) else answer


class Calls:
    """The methods that both clients have. Those of `hoplite.Client` say what they do and raise."""

    __slots__ = ("_limit", "_native", "allow_pickle")

    allow_pickle: bool
    """False if this client refuses values that were stored as pickles."""

    def __init__(
        self, native: _native.Client | _native.AsyncClient, allow_pickle: bool | None = None
    ) -> None:
        self._native = native
        self._limit = native.max_object_bytes
        self.allow_pickle = may_unpickle() if allow_pickle is None else allow_pickle

    def _encoded(self, id: Id, value: object) -> Encoded:
        """Returns what is to be put for a value, unless that is a pickle, and this client allows none."""
        encoded = _serialize.encode(value, text(id), self._limit)
        self._check_written(id, encoded)
        return encoded

    def _check_written(self, id: Id, encoded: Encoded) -> None:
        if encoded.user == _serialize.TAG_PICKLE and not self.allow_pickle:
            raise PickleRefused(
                f"the value of object {text(id)!r} can only be stored as a pickle, and this client allows none "
                "(allow_pickle=False or HOPLITE_ALLOW_PICKLE=0)",
                id=text(id),
            )

    async def put(
        self, id: Id | None, value: object, timeout: TimeLimit = "default", *, confirm: bool = False
    ) -> Ref:
        """See `hoplite.Client.put`. The methods of the handle block, and use the client of `hoplite.init`."""
        name = new_id() if id is None else id
        encoded = self._encoded(name, value)
        pieces, dtype, shape, user = encoded
        # Not by `settled`: a coroutine more is felt in what takes some tens of microseconds.
        put = self._native.put(name, pieces, dtype, shape, user, timeout, confirm)
        if isinstance(put, Future):
            await put
        return made_ref(name, encoded, self._native.cluster)

    async def get(
        self, id: Id, timeout: TimeLimit = "default", copy: bool | None = None, framework: Framework = None
    ) -> Any:
        """See `hoplite.Client.get`."""
        check_framework(framework)
        if copy:
            return await self._get_private(id, timeout, framework)
        # Not by `settled`, as in `put`.
        view = self._native.get(id, timeout)
        if isinstance(view, Future):
            view = await view
        return _serialize.decode(view, copy, framework, self.allow_pickle, text(id))

    async def _get_private(self, id: Id, timeout: TimeLimit, framework: Framework) -> Any:
        deadline = Deadline(timeout)
        while True:
            reader = await settled(self._native.open(id, deadline.left()))
            room, finish = _serialize.destination(reader, framework, self.allow_pickle, text(id))
            try:
                await settled(self._native.read(reader, room, deadline.left()))
            except Superseded:
                continue
            return finish()

    async def get_into(self, id: Id, out: object, timeout: TimeLimit = "default") -> int:
        """See `hoplite.Client.get_into`.

        Cancelled, it may go on to write to `out` for a moment, until the piece that is under way is copied.
        """
        room, wanted = _serialize.as_room(out)
        if wanted.kind == "buffer":
            return await settled(self._native.get_into(id, room, timeout))
        return await fill(self._native, id, room, wanted, timeout)

    async def reduce(
        self,
        target: Id,
        sources: Iterable[AnyId],
        op: Op = "sum",
        *,
        num_objects: int | None = None,
        deterministic: bool = False,
        timeout: TimeLimit = "default",
    ) -> list[AnyId]:
        """See `hoplite.Client.reduce`. Cancelled, it ends everywhere."""
        sources = listed(sources)
        reduced = await settled(
            self._native.reduce(target, sources, op, num_objects, deterministic, None, timeout)
        )
        return as_given(reduced, sources)

    async def gather(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """See `hoplite.Client.gather`."""
        check_framework(framework)
        ids = listed(ids)
        views = await settled(self._native.gather(ids, timeout))
        return self._decoded(ids, views, copy, framework)

    async def allgather(
        self,
        ids: Iterable[Id],
        rank: int,
        value: object,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
    ) -> list[Any]:
        """See `hoplite.Client.allgather`."""
        check_framework(framework)
        ids = listed(ids)
        own_id(ids, rank)
        encoded = self._encoded(ids[rank], value)
        views = await settled(
            self._native.allgather(
                ids, rank, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, timeout
            )
        )
        return self._decoded(ids, views, copy, framework)

    def _decoded(
        self, ids: Iterable[Id], views: Iterable[_native.View], copy: bool | None, framework: Framework
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
    ) -> Any:
        """See `hoplite.Client.allreduce`."""
        perform = self._native.allreduce_into
        return await self._reduced(
            perform, all_of, target, sources, rank, value, op, out, deterministic, timeout
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
    ) -> Any:
        """See `hoplite.Client.reduce_scatter`."""
        perform = self._native.reduce_scatter_into
        return await self._reduced(
            perform, part_of, target, sources, rank, value, op, out, deterministic, timeout
        )

    async def _reduced(
        self,
        perform: Callable[[Id, list[Id], int, Any, Op, bool, TimeLimit], Any],
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
        """Puts the value, and has `perform` fill `out`, or an array for what `result_of` makes of the own source."""
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
        await settled(perform(target, sources, rank, room, op, deterministic, deadline.left()))
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
        return await settled(self._native.allgather_into(target, sources, rank, room, deadline.left()))

    async def _put_own(self, id: Id, encoded: Encoded, deadline: Deadline) -> None:
        await settled(
            self._native.put(
                id, encoded.pieces, encoded.dtype, encoded.shape, encoded.user, deadline.left(), False
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
    ) -> list[Any]:
        """See `hoplite.Client.all_to_all`."""
        check_framework(framework)
        check_rank(rank, len(values))
        parts = _serialize.encode_alike(values, text(name), self._limit)
        self._check_written(name, parts[0])
        dtype, shape, user = parts[0].dtype, parts[0].shape, parts[0].user
        pieces = [part.pieces for part in parts]
        views = await settled(self._native.all_to_all(name, pieces, rank, dtype, shape, user, timeout))
        return self._decoded([name] * len(views), views, copy, framework)

    async def barrier(self, name: Id, size: int, rank: int, timeout: TimeLimit = "default") -> None:
        """See `hoplite.Client.barrier`."""
        check_rank(rank, size)
        await settled(self._native.barrier(name, size, rank, timeout))

    async def delete(self, ids: Id | Iterable[Id], timeout: TimeLimit = "default") -> int:
        """See `hoplite.Client.delete`."""
        return await settled(self._native.delete(several(ids), timeout))

    async def wait(
        self, ids: Iterable[AnyId], num: int | None = None, timeout: TimeLimit = "default"
    ) -> tuple[list[AnyId], list[AnyId]]:
        """See `hoplite.Client.wait`."""
        ids = listed(ids)
        ready = await settled(self._native.wait(ids, len(ids) if num is None else num, timeout))
        return divide(ids, ready)

    async def contains(self, id: Id) -> bool:
        """See `hoplite.Client.contains`."""
        return await settled(self._native.contains(id))

    async def stat(self, id: Id) -> ObjectInfo | None:
        """See `hoplite.Client.stat`."""
        from hoplite._info import object_info

        known = await settled(self._native.describe(id))
        return object_info(known)

    async def page(self, prefix: str | bytes, after: bytes) -> tuple[list[ObjectInfo], bytes | None]:
        """The next objects of a listing, after the id `after`, and the id to go on after; None if there are no more."""
        from hoplite._info import object_info

        prefix = prefix.encode() if isinstance(prefix, str) else prefix
        page, rest = await settled(self._native.list(prefix, after, PAGE))
        return list(filter(None, map(object_info, page))), rest

    async def status(self) -> Mapping[str, Any]:
        """See `hoplite.Client.status`."""
        counters = await settled(self._native.status())
        return counters


async def fill(
    native: _native.Client | _native.AsyncClient, id: Id, room: Any, wanted: Layout, timeout: TimeLimit
) -> int:
    """Copies an object into `room` while it arrives, if it is what is wanted, and returns its size."""
    deadline = Deadline(timeout)
    while True:
        reader = await settled(native.open(id, deadline.left()))
        check_layout(id, reader, wanted)
        try:
            await settled(native.read(reader, room, deadline.left()))
        except Superseded:
            continue
        return reader.nbytes


def program_name() -> str:
    """How this program is called in the log of the store."""
    return os.path.basename(sys.argv[0] if sys.argv else "") or "python"


def refuse_to_pickle() -> TypeError:
    return TypeError(
        "a client belongs to its process; pass hoplite.Ref, and call hoplite.init() where it arrives"
    )


def new_id() -> str:
    """An id that nobody else has."""
    return f"py/{os.urandom(16).hex()}"


def made_ref(id: Id, encoded: Encoded, cluster: str) -> Ref:
    return Ref(text(id), _serialize.dtype_name(encoded.dtype), encoded.shape, encoded.nbytes, cluster)


def may_unpickle() -> bool:
    """Returns what `HOPLITE_ALLOW_PICKLE` says of clients that are not told; True if it is not set, or empty.

    Raises:
        ValueError: if it says neither yes nor no, so that a mistake in it does not allow anything.
    """
    said = os.environ.get(ALLOW_PICKLE_VARIABLE, "").strip().lower()
    if said in ("", "1", "true", "yes", "on"):
        return True
    if said in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{ALLOW_PICKLE_VARIABLE} is 1 or 0, not {said!r}")


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
    check_rank(rank, len(sources))
    return sources[rank]


def check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} among {size} participants")


def as_given(ids: list[str | bytes], given: list[AnyId]) -> list[AnyId]:
    """The ids that the store names, as the caller named them."""
    by_key = {key(id): id for id in given}
    return [by_key[key(id)] for id in ids]


def divide(ids: list[AnyId], chosen: list[int]) -> tuple[list[AnyId], list[AnyId]]:
    indices = set(chosen)
    left = [id for index, id in enumerate(ids) if index not in indices]
    return [ids[index] for index in chosen], left


def check_framework(framework: Framework) -> None:
    if framework not in (None, "numpy", "torch", "jax"):
        raise ValueError(f'a framework is "numpy", "torch" or "jax", not {framework!r}')


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
    found = _serialize.layout(described, "torch" if wanted.kind == "tensor" else "numpy", text(id))
    if (found.kind, found.dtype, found.shape) != (wanted.kind, wanted.dtype, wanted.shape):
        reason = f"it is {_describe(found)}, to be copied into {_describe(wanted)}"
        raise TypeMismatch(f"object {text(id)!r} does not fit: {reason}", id=text(id), reason=reason)


class Part(NamedTuple):
    """What is known of a part of an object."""

    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    user: bytes


def all_of(id: Id, described: Described, count: int) -> Described:
    return described


def part_of(id: Id, described: Described, count: int) -> Described:
    """One of so many equal parts of an array, divided along its first axis."""
    shape = described.shape
    if not shape or shape[0] % count:
        what = "an object without a shape" if shape is None else f"an array of shape {list(shape)}"
        reason = f"{what} cannot be divided along its first axis among {count} participants"
        raise InvalidRequest(f"object {text(id)!r} cannot be scattered: {reason}", id=text(id), reason=reason)
    part = (shape[0] // count, *shape[1:])
    return Part(described.nbytes // count, described.dtype, part, described.user)


def check_gathered(id: Id, described: Described, count: int, wanted: Layout) -> None:
    """Checks that `wanted` is what so many objects like this one are together: stacked, or one after the other."""
    if wanted.kind == "buffer":
        return
    found = _serialize.layout(described, "torch" if wanted.kind == "tensor" else "numpy", text(id))
    shapes = [(count, *found.shape)]
    if found.shape:
        shapes.append((count * found.shape[0], *found.shape[1:]))
    if (found.kind, found.dtype) != (wanted.kind, wanted.dtype) or wanted.shape not in shapes:
        reason = f"it is {_describe(found)}, of which {count} are to be copied into {_describe(wanted)}"
        raise TypeMismatch(f"object {text(id)!r} does not fit: {reason}", id=text(id), reason=reason)


def _describe(layout: Layout) -> str:
    if layout.kind in ("array", "tensor", "jax"):
        return f"{layout.dtype}{list(layout.shape)}"
    others = {"bytes": "bytes", "buffer": "bytes", "arrow": "a value of Arrow"}
    return others.get(layout.kind, "a pickle")
