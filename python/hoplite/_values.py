from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite._answers import OnProgress, T, run
from hoplite._checks import Id, TtlAction
from hoplite._serialize import Framework
from hoplite._timeouts import TimeLimit
from hoplite.ref import Ref

if TYPE_CHECKING:
    from hoplite._calls import Calls


class Values:
    __slots__ = ()

    _calls: Calls

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
        ref._client = self  # type: ignore[assignment]
        return ref

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
