"""Objects of Ray tasks: what is passed between them is a small handle."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, overload

import ray

import hoplite
from hoplite import Client, ConnectFailed
from hoplite._answers import OnProgress, T
from hoplite._checks import Id, Op
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.ray import _leases, _nodes
from hoplite.ray._connection import is_absent, own, twice
from hoplite.ray._place import here
from hoplite.ref import T_co


class Ref(hoplite.Ref[T_co]):
    """A handle of an object, which finds the store of the Ray node on which it is used.

    It can be passed to tasks and actors, in whatever they take and return. Ray does not know of the object: it stays until
    it is deleted, or the job ends.
    """

    __slots__ = ()

    @property
    def client(self) -> Client:
        """The client of this process."""
        return client()

    def get(
        self,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        progress: OnProgress = None,
    ) -> Any:
        """Gets the object; see `hoplite.Client.get`."""
        return twice(client, lambda client: client.get(self, timeout, copy, framework, progress=progress))

    def delete(self, timeout: TimeLimit = "default") -> None:
        """Deletes the object, if it is still there."""
        self.disown()
        twice(client, lambda client: client.delete(self, timeout))

    def __reduce__(self) -> tuple[type[Ref[Any]], tuple[Any, ...]]:
        return Ref, (self.id, self.dtype, self.shape, self.nbytes, self.cluster)


def client() -> Client:
    """The connection of this process to the store of its Ray node; the same one for every call.

    Raises:
        ConnectFailed: if there is no store. One that is missing on a new node of the cluster is started.
        RuntimeError: if Ray was not initialized.
    """
    place = here()
    try:
        connected = own().client(place.socket)
    except ConnectFailed as error:
        if not is_absent(error):
            raise
        _start_here(error)
        connected = own().client(place.socket)
    place.export()
    return connected


def lease() -> _leases.Lease:
    """The lease of this process, on a node that has a store. Raises what `client` does."""
    client()
    try:
        return _leases.of_process()
    except FileNotFoundError:
        # The store was stopped, which the client has not noticed.
        own().close()
        client()
        return _leases.of_process()


def _start_here(error: ConnectFailed) -> None:
    try:
        _nodes.refresh()
    except RuntimeError as refused:
        raise ConnectFailed(
            f"there is no store on this Ray node: {refused}", path=error.path, reason=error.reason
        ) from None


def new_ref() -> Ref[Any]:
    """A handle of an object that does not exist yet, to be given to whoever will put it and to those who will get it."""
    return Ref(f"{here().job_prefix(ray.get_runtime_context().get_job_id())}{uuid.uuid4().hex}")


def put(value: T, ref: Ref[Any] | None = None, timeout: TimeLimit = "default") -> Ref[T]:
    """Puts a value into the store of this node, and returns a handle that can be passed to tasks and actors.

    Args:
        value: what `hoplite.Client.put` takes.
        ref: a handle from `new_ref`; None for a new one.
        timeout: how long to wait for room, in seconds.
    Raises:
        What `hoplite.Client.put` and `client` raise.
    """
    given = new_ref() if ref is None else ref
    made = twice(client, lambda client: client.put(given, value, timeout))
    return Ref(made.id, made.dtype, made.shape, made.nbytes, made.cluster)


@overload
def get(refs: hoplite.Ref[T], timeout: TimeLimit = "default", copy: bool | None = None) -> T: ...
@overload
def get(refs: Id, timeout: TimeLimit = "default", copy: bool | None = None) -> Any: ...
@overload
def get(
    refs: Iterable[hoplite.Ref[T]], timeout: TimeLimit = "default", copy: bool | None = None
) -> list[T]: ...
@overload
def get(refs: Iterable[Id], timeout: TimeLimit = "default", copy: bool | None = None) -> list[Any]: ...
def get(refs: Any, timeout: TimeLimit = "default", copy: bool | None = None) -> Any:
    """Gets the object of a handle, or a list of those of several, wherever in the cluster they are.

    If many tasks get one object, those that have a part of it already serve the others.

    Args:
        refs: handles, or names of your own.
        timeout: how long to wait, in seconds, also for objects that do not exist yet; None for ever.
        copy: True for private arrays that may be written to; by default numpy arrays are read-only and in shared memory.
    Raises:
        What `hoplite.Client.get` and `client` raise.
    """
    handles = _handles(refs)
    if isinstance(refs, (hoplite.Ref, str, bytes)):
        return twice(client, lambda client: client.get(handles[0], timeout, copy))
    return twice(client, lambda client: client.gather(handles, timeout, copy))


def wait(
    refs: Iterable[hoplite.Ref[Any]], num: int | None = None, timeout: TimeLimit = "default"
) -> tuple[list[hoplite.Ref[Any]], list[hoplite.Ref[Any]]]:
    """Waits until `num` of the objects (None: all) are there; see `hoplite.Client.wait`."""
    handles = _handles(refs)
    return twice(client, lambda client: client.wait(handles, num, timeout))


def reduce(
    sources: Iterable[hoplite.Ref[Any]],
    op: Op = "sum",
    *,
    num_objects: int | None = None,
    target: Ref[Any] | None = None,
    timeout: TimeLimit = "default",
) -> tuple[Ref[Any], list[hoplite.Ref[Any]]]:
    """Reduces equally shaped arrays into a new object, in the stores and while they arrive; see `hoplite.Client.reduce`.

    Args:
        sources: they need not exist yet.
        num_objects: reduce only the first so many to be there; None means all.
        target: a handle from `new_ref`; None for a new one.
    Returns:
        The handle of the result, and the sources that were reduced.
    """
    made, handles = new_ref() if target is None else target, _handles(sources)
    reduced = twice(
        client, lambda client: client.reduce(made, handles, op, num_objects=num_objects, timeout=timeout)
    )
    return made, reduced


def delete(refs: Id | Iterable[Id], timeout: TimeLimit = "default") -> int:
    """Deletes the objects, and returns how many there were. Arrays that were got stay readable."""
    handles = _handles(refs)
    return twice(client, lambda client: client.delete(handles, timeout))


def _handles(refs: Any) -> list[Any]:
    """One handle or several, as a list."""
    handles = [refs] if isinstance(refs, (hoplite.Ref, str, bytes, ray.ObjectRef)) else list(refs)
    if any(isinstance(handle, ray.ObjectRef) for handle in handles):
        raise TypeError(
            "this is a reference of Ray, not a handle of Hoplite: if it is that of a task which returns a handle, "
            "call ray.get first"
        )
    return handles
