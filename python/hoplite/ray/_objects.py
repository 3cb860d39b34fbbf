"""Objects of Ray tasks, which pass small handles."""

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
    """A handle whose methods use the store of the current Ray node.

    Tasks and actors can take and return handles. The object stays until you or the end of the job
    delete it.

    Examples:
        >>> with hoplite.ray.put(np.ones(3)) as ref:    # deleted at the end of the block
        ...     ref.get()
        array([1., 1., 1.])
    """

    __slots__ = ()

    @property
    def client(self) -> Client:
        """The client of this process.

        Examples:
            >>> hoplite.ray.put(1).client is hoplite.ray.client()
            True
        """
        return client()

    def get(
        self,
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        progress: OnProgress = None,
    ) -> Any:
        """Gets the object; see `hoplite.Client.get`. Blocks.

        Examples:
            >>> hoplite.ray.put(7).get()
            7
        """
        return twice(
            client,
            lambda client: client.get(
                self, timeout, copy, framework, allow_stale=allow_stale, progress=progress
            ),
        )

    def delete(self, timeout: TimeLimit = "default") -> None:
        """Deletes the object, if it exists. Blocks until all copies are gone.

        Examples:
            >>> ref = hoplite.ray.put(7)
            >>> ref.delete()
        """
        self.disown()
        twice(client, lambda client: client.delete(self, timeout))

    def __reduce__(self) -> tuple[type[Ref[Any]], tuple[Any, ...]]:
        return Ref, (self.id, self.dtype, self.shape, self.nbytes, self.cluster)


def client() -> Client:
    """Returns this process's client for the store of its Ray node.

    On a new node, starts a store, and blocks until it runs.

    Raises:
        ConnectFailed: There is no store on this node.
        RuntimeError: Ray is not initialized.

    Examples:
        >>> hoplite.ray.client().contains("absent")
        False
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
    client()
    try:
        return _leases.of_process()
    except FileNotFoundError:
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
    """Returns a handle for tasks that put and get a future object. Does not block.

    Examples:
        >>> ref = hoplite.ray.new_ref()
        >>> hoplite.ray.put(np.ones(2), ref) == ref
        True
    """
    return Ref(f"{here().job_prefix(ray.get_runtime_context().get_job_id())}{uuid.uuid4().hex}")


def put(value: T, ref: Ref[Any] | None = None, timeout: TimeLimit = "default") -> Ref[T]:
    """Puts a value into the store of this node, and returns a handle for tasks and actors.

    Blocks until the value is in the store; see `hoplite.Client.put`.

    Args:
        ref: A handle from `new_ref`, or an id; `None` for a new handle.

    Raises:
        StoreFull: As for `hoplite.Client.put` and `client`, which have more errors.

    Examples:
        >>> ref = hoplite.ray.put(np.ones((2, 3), np.float32))
        >>> ref.dtype, ref.shape
        ('float32', (2, 3))
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
def get(
    refs: Iterable[Id], timeout: TimeLimit = "default", copy: bool | None = None
) -> list[Any]: ...
def get(refs: Any, timeout: TimeLimit = "default", copy: bool | None = None) -> Any:
    """Gets one value, or a list of several. Blocks until they are on this node.

    Args:
        refs: Handles or ids: one or several.
        timeout: Seconds to wait, also for future objects; `None` waits for ever.
        copy: `True` returns private, writable arrays. By default, arrays of numpy are read-only
            and in shared memory.

    Raises:
        Timeout: As for `hoplite.Client.get` and `client`, which have more errors.
        TypeError: A handle is an `ObjectRef` of Ray.

    Examples:
        >>> refs = [hoplite.ray.put(k) for k in range(3)]
        >>> hoplite.ray.get(refs[0]), hoplite.ray.get(refs)
        (0, [0, 1, 2])
    """
    handles = _handles(refs)
    if isinstance(refs, (hoplite.Ref, str, bytes)):
        return twice(client, lambda client: client.get(handles[0], timeout, copy))
    return twice(client, lambda client: client.gather(handles, timeout, copy))


def wait(
    refs: Iterable[hoplite.Ref[Any]], num: int | None = None, timeout: TimeLimit = "default"
) -> tuple[list[hoplite.Ref[Any]], list[hoplite.Ref[Any]]]:
    """Waits until `num` of the objects (`None`: all) are available; see `hoplite.Client.wait`.

    Returns:
        The available handles, and the others.

    Examples:
        >>> refs = [hoplite.ray.put(1), hoplite.ray.new_ref()]
        >>> there, missing = hoplite.ray.wait(refs, num=1)
        >>> there == refs[:1], missing == refs[1:]
        (True, True)
    """
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
    """Combines arrays of one dtype and shape into a new object; see `hoplite.Client.reduce`.

    Blocks until the result is complete.

    Args:
        sources: Handles of the arrays.
        target: A handle from `new_ref`; `None` for a new one.

    Returns:
        The handle of the result, and the sources that were combined.

    Examples:
        >>> total, used = hoplite.ray.reduce([hoplite.ray.put(np.full(2, k)) for k in range(3)])
        >>> hoplite.ray.get(total), len(used)
        (array([3, 3]), 3)
    """
    made, handles = new_ref() if target is None else target, _handles(sources)
    reduced = twice(
        client,
        lambda client: client.reduce(made, handles, op, num_objects=num_objects, timeout=timeout),
    )
    return made, reduced


def delete(refs: Id | Iterable[Id], timeout: TimeLimit = "default") -> int:
    """Deletes one object or several, and returns the number that existed. Blocks until all copies
    are gone. Arrays that programs hold stay readable.

    Examples:
        >>> hoplite.ray.delete([hoplite.ray.put(np.ones(3)), hoplite.ray.put(np.ones(3))])
        2
    """
    handles = _handles(refs)
    return twice(client, lambda client: client.delete(handles, timeout))


def _handles(refs: Any) -> list[Any]:
    handles = [refs] if isinstance(refs, (hoplite.Ref, str, bytes, ray.ObjectRef)) else list(refs)
    if any(isinstance(handle, ray.ObjectRef) for handle in handles):
        raise TypeError(
            "this is a reference of Ray, not a handle of Hoplite: if its task returns a handle, "
            "call ray.get first"
        )
    return handles
