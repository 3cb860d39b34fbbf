"""Puts, gets and deletes of many small objects in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite import _native, _serialize
from hoplite._answers import T, run, settled
from hoplite._checks import Id, TtlAction, check_framework, lifetime_of, listed, text
from hoplite._process import new_id
from hoplite._serialize import Encoded, Framework
from hoplite._stale import warn_if_stale
from hoplite._timeouts import TimeLimit
from hoplite.ref import Ref

if TYPE_CHECKING:
    from hoplite._calls import Calls

Objects = Mapping[Id, object] | Iterable[tuple[Id | None, object]]


class ManyCalls:
    """`hoplite.Client` documents these methods."""

    __slots__ = ()

    _native: _native.Client | _native.AsyncClient
    allow_pickle: bool

    def _encoded(self, id: Id, value: object) -> Encoded:
        raise NotImplementedError

    async def put_many(
        self,
        objects: Objects,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        return_exceptions: bool = False,
    ) -> list[Any]:
        """See `hoplite.Client.put_many`. The handles' methods block, with the client of
        `hoplite.init`."""
        pairs = list(objects.items() if isinstance(objects, Mapping) else objects)
        self._native.check_count(len(pairs))
        named = [(new_id() if id is None else id, value) for id, value in pairs]
        encoded = [self._encoded(id, value) for id, value in named]
        described = [(id, *one) for (id, _), one in zip(named, encoded, strict=True)]
        lifetime = lifetime_of(owner, ttl, ttl_action)
        call = self._native.put_many(described, timeout, confirm, replicas or 0, lifetime)
        outcomes = await settled(call)
        cluster = self._native.cluster
        refs = [
            outcome
            or Ref(text(id), _serialize.dtype_name(one.dtype), one.shape, one.nbytes, cluster)
            for (id, _), one, outcome in zip(named, encoded, outcomes, strict=True)
        ]
        return _checked(refs, return_exceptions)

    async def get_many(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """See `hoplite.Client.get_many`."""
        check_framework(framework)
        ids = listed(ids)
        self._native.check_count(len(ids))
        views = await settled(self._native.get_many(ids, timeout, allow_stale))
        _checked(views, return_exceptions)
        values: list[Any] = []
        for id, view in zip(ids, views, strict=True):
            if isinstance(view, Exception):
                values.append(view)
                continue
            if allow_stale:
                warn_if_stale(view, text(id))
            try:
                values.append(_serialize.decode(view, copy, framework, self.allow_pickle, text(id)))
            except Exception as error:
                if not return_exceptions:
                    raise
                values.append(error)
        return values

    async def delete_many(
        self, ids: Iterable[Id], timeout: TimeLimit = "default", *, return_exceptions: bool = False
    ) -> list[Any]:
        """See `hoplite.Client.delete_many`."""
        ids = listed(ids)
        self._native.check_count(len(ids))
        outcomes = await settled(self._native.delete_many(ids, timeout))
        return _checked(outcomes, return_exceptions)


class Many:
    """The batch methods of `hoplite.Client`."""

    __slots__ = ()

    _calls: Calls

    @overload
    def put_many(
        self,
        objects: Objects,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        return_exceptions: Literal[False] = False,
    ) -> list[Ref[Any]]: ...
    @overload
    def put_many(
        self,
        objects: Objects,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        return_exceptions: bool,
    ) -> list[Ref[Any] | Exception]: ...
    def put_many(
        self,
        objects: Objects,
        timeout: TimeLimit = "default",
        *,
        confirm: bool | int = False,
        replicas: int | None = None,
        owner: str | None = None,
        ttl: float | None = None,
        ttl_action: TtlAction = "delete",
        return_exceptions: bool = False,
    ) -> Any:
        """Stores many values, and returns their handles.

        Small objects share messages, so this takes a fraction of the time of single puts. Blocks
        until each value is stored or has failed. Other arguments are as for `put`, for each value.

        Args:
            objects: Values by id, or pairs of an id (`None`: a new random one) and a value.
            timeout: Seconds to wait for room, for all values together.
            return_exceptions: `True` returns a failed value's exception in place of its handle.
                Otherwise the call stores the other values, and raises the first exception.

        Returns:
            The handles, in the order of the values.

        Raises:
            LimitExceeded: There are more than 65,536 values, or another limit of the store. Nothing
                was put.
            AlreadyExists: As for `put`, which has more errors.

        Examples:
            >>> client.put_many({"step/1": np.ones(2), "step/2": np.zeros(2)})
            [hoplite.Ref('step/1', float64[2]), hoplite.Ref('step/2', float64[2])]
            >>> results = client.put_many([("step/1", b"other"), ("step/3", b"3")], return_exceptions=True)
            >>> [type(result).__name__ for result in results]
            ['AlreadyExists', 'Ref']
        """
        refs = run(
            self._calls.put_many(
                objects,
                timeout,
                confirm=confirm,
                replicas=replicas,
                owner=owner,
                ttl=ttl,
                ttl_action=ttl_action,
                return_exceptions=return_exceptions,
            )
        )
        for ref in refs:
            if isinstance(ref, Ref):
                ref._client = self  # type: ignore[assignment]
        return refs

    @overload
    def get_many(
        self,
        ids: Iterable[Ref[T]],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: None = None,
        *,
        allow_stale: bool = False,
        return_exceptions: Literal[False] = False,
    ) -> list[T]: ...
    @overload
    def get_many(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        return_exceptions: bool = False,
    ) -> list[Any]: ...
    def get_many(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        copy: bool | None = None,
        framework: Framework = None,
        *,
        allow_stale: bool = False,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Waits for many objects, and returns their values in the order of `ids`.

        Requests for small objects share messages. Blocks until all objects are on this node, or
        until the timeout. All must fit into the store together. Other arguments are as for `get`.

        Args:
            ids: The objects; they need not exist yet.
            timeout: Seconds to wait for all of them.
            return_exceptions: `True` returns a failed object's exception in place of its value.
                Otherwise the call raises the first one.

        Raises:
            LimitExceeded: There are more than 65,536 ids, or another limit of the store.
            Timeout: As for `get`, which has more errors.

        Examples:
            >>> refs = client.put_many((None, np.full(2, k)) for k in range(3))
            >>> [array.sum() for array in client.get_many(refs)]
            [np.int64(0), np.int64(2), np.int64(4)]
            >>> values = client.get_many([refs[0], "absent"], timeout=0.1, return_exceptions=True)
            >>> [type(value).__name__ for value in values]
            ['ndarray', 'Timeout']
        """
        options = {"allow_stale": allow_stale, "return_exceptions": return_exceptions}
        return run(self._calls.get_many(ids, timeout, copy, framework, **options))

    @overload
    def delete_many(
        self,
        ids: Iterable[Id],
        timeout: TimeLimit = "default",
        *,
        return_exceptions: Literal[False] = False,
    ) -> list[bool]: ...
    @overload
    def delete_many(
        self, ids: Iterable[Id], timeout: TimeLimit = "default", *, return_exceptions: bool
    ) -> list[bool | Exception]: ...
    def delete_many(
        self, ids: Iterable[Id], timeout: TimeLimit = "default", *, return_exceptions: bool = False
    ) -> Any:
        """Removes every copy of many objects, and returns a result for each id.

        Blocks as `delete` does.

        Args:
            ids: The objects.
            timeout: Seconds to wait for all of them.
            return_exceptions: `True` returns a failed id's exception in place of its result.
                Otherwise the call deletes the others, and raises the first exception.

        Returns:
            `True` for each id that named an object, in the order of `ids`.

        Raises:
            LimitExceeded: There are more than 65,536 ids, or another limit of the store. Nothing
                was deleted.
            Timeout: Not all copies are known to be gone in time.

        Examples:
            >>> ref = client.put("old", b"1", confirm=True)
            >>> client.delete_many(["old", "absent"])
            [True, False]
        """
        return run(self._calls.delete_many(ids, timeout, return_exceptions=return_exceptions))


def _checked(outcomes: list[Any], return_exceptions: bool) -> list[Any]:
    if not return_exceptions:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
    return outcomes
