"""The tensor transports of Ray (RDT, Ray Direct Transport) through Hoplite.

    @ray.remote
    class Trainer:
        @ray.method(tensor_transport="hoplite")
        def weights(self) -> torch.Tensor: ...

The returned tensors become one object in the node's store. The producer may then change them, and
may even end.

Ray tells the producer when the last reference is gone. `_reclaim` deletes the objects of ended
producers.
"""

from __future__ import annotations

import logging
import pickle
import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayDirectTransportError
from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

import hoplite.aio
from hoplite.errors import ConnectFailed, ConnectionLost, ForkedChild, HopliteError
from hoplite.ray import _background, _leases, _objects, _private
from hoplite.ray._connection import twice

logger = logging.getLogger(__name__)

PUT_TIMEOUT = 30.0
#: Bytes that Ray itself carries at most: half of its largest message.
MAX_CARRIED_BYTES = 256 << 20


class Tensors(TensorTransportMetadata):
    """An RDT object's id, or contents, and the description of its tensors.

    The producer sends an instance first to the owner, the process that called the method. The owner
    claims the object while Ray has a reference.
    """

    def __init__(
        self,
        ray_id: str,
        id: str | None,
        tensor_meta: list[Any],
        tensor_device: str | None,
        contents: bytes | None = None,
    ) -> None:
        super().__init__(tensor_meta, tensor_device)
        self.ray_id = ray_id
        self.id = id
        self.contents = contents
        self._was_made_here = True

    def __reduce__(self) -> tuple[Any, ...]:
        # If Ray manages the object here (`ray.put`), this process is its owner already.
        goes_to_owner = self._was_made_here and not _private.is_managed_here(self.ray_id)
        return _arrived, (
            self.ray_id,
            self.id,
            self.tensor_meta,
            self.tensor_device,
            goes_to_owner,
            self.contents,
        )


def _arrived(
    ray_id: str,
    id: str | None,
    tensor_meta: list[Any],
    tensor_device: str | None,
    is_owner: bool,
    contents: bytes | None = None,
) -> Tensors:
    tensors = Tensors(ray_id, id, tensor_meta, tensor_device, contents)
    tensors._was_made_here = False
    if is_owner and id is not None:
        try:
            lease = _leases.of_process()
            lease.claim(id)
            # At exit, the lease ends anyway.
            weakref.finalize(tensors, lease.drop, id).atexit = False
        except Exception:
            # An exception would crash Ray.
            logger.warning("Hoplite cannot keep %s if its producer ends.", id, exc_info=True)
    return tensors


@dataclass
class Fetch(FetchRequest):
    """A get, which is cancelled when nothing refers to it."""

    future: Future[list[Any]]

    def __del__(self) -> None:
        self.future.cancel()


class HopliteTransport(TensorTransportManager):
    _name: str

    def __init__(self) -> None:
        self._putting = threading.Lock()
        self._made: dict[str, Tensors] = {}
        self._lock = threading.Lock()
        self._fetches: defaultdict[str, set[Future[list[Any]]]] = defaultdict(set)

    def tensor_transport_backend(self) -> str:
        return self._name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        if dst_actor is not None and not _private.can_receive(dst_actor):
            logger.warning(
                "%s will hang: its class needs @ray.remote(enable_tensor_transport=True)", dst_actor
            )
        return CommunicatorMetadata()

    # In the process that makes the tensors

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Tensors:
        """Puts the tensors once, even if Ray retries the method."""
        with self._putting:
            if obj_id not in self._made:
                self._made[obj_id] = self._put(obj_id, rdt_object)
            return self._made[obj_id]

    def _put(self, ray_id: str, tensors: list[Any]) -> Tensors:
        devices = {self._device(tensor) for tensor in tensors}
        if devices - {"cpu"}:
            # Ray raises its own error for tensors on other devices.
            return Tensors(ray_id, None, self._describe(tensors), (devices - {"cpu"}).pop())
        if not tensors:
            return Tensors(ray_id, None, [], None)
        id = f"{_objects.lease().prefix}{ray_id}"
        plain = [self._plain(tensor) for tensor in tensors]
        # No list: receivers copy a single tensor while it arrives.
        value = plain[0] if len(plain) == 1 else plain
        try:
            twice(_objects.client, lambda client: client.put(id, value, PUT_TIMEOUT))
        except (ConnectFailed, ConnectionLost, ForkedChild):
            raise
        except HopliteError as error:
            nbytes = sum(tensor.nbytes for tensor in plain)
            if nbytes > MAX_CARRIED_BYTES:
                raise
            logger.warning(
                "Ray carries tensors of %d bytes itself: %s: %s",
                nbytes,
                type(error).__name__,
                error,
            )
            # A failed put may have stored the object.
            _background.begin(lambda client: client.delete(id))
            return Tensors(
                ray_id, None, self._describe(tensors), "cpu", pickle.dumps(plain, protocol=5)
            )
        return Tensors(ray_id, id, self._describe(tensors), "cpu")

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: TensorTransportMetadata, tensors: list[Any]
    ) -> None:
        made = self._made.pop(obj_id, None)
        if made is not None and (id := made.id) is not None:
            _background.begin(lambda client: client.delete(id))

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError("receivers fetch the tensors themselves")

    # In the processes that receive them

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        fetch = self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        )
        return self.wait_fetch_complete(fetch)

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        assert isinstance(tensor_transport_metadata, Tensors)
        id = tensor_transport_metadata.id
        count = len(tensor_transport_metadata.tensor_meta)
        future: Future[list[Any]]
        contents = tensor_transport_metadata.contents
        if id is None:
            future = Future()
            carried = (
                [] if contents is None else self._carried(pickle.loads(contents), target_buffers)
            )
            future.set_result(carried)
        else:
            try:
                future = _background.begin(
                    lambda client: self._get(client, id, count, target_buffers)
                )
            except HopliteError as error:
                raise _failed(obj_id, error) from error
            with self._lock:
                self._fetches[obj_id].add(future)
            future.add_done_callback(lambda future: self._ended(obj_id, future))
        return Fetch(obj_id, [], future)

    def wait_fetch_complete(self, fetch_request: FetchRequest, timeout: float = -1) -> list[Any]:
        assert isinstance(fetch_request, Fetch)
        try:
            return fetch_request.future.result(None if timeout < 0 else timeout)
        except (HopliteError, CancelledError) as error:
            raise _failed(fetch_request.obj_id, error) from error

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        with self._lock:
            fetches = list(self._fetches.get(obj_id, ()))
        for future in fetches:
            future.cancel()

    def _ended(self, obj_id: str, future: Future[list[Any]]) -> None:
        with self._lock:
            self._fetches[obj_id].discard(future)
            if not self._fetches[obj_id]:
                del self._fetches[obj_id]

    async def _get(
        self, client: hoplite.aio.Client, id: str, count: int, buffers: Sequence[Any] | None
    ) -> list[Any]:
        raise NotImplementedError

    def _carried(self, tensors: list[Any], buffers: Sequence[Any] | None) -> list[Any]:
        if buffers is None:
            return tensors
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor)
        return list(buffers)

    # Differences between the transports

    def _describe(self, tensors: list[Any]) -> list[Any]:
        return [(tensor.shape, tensor.dtype) for tensor in tensors]

    def _device(self, tensor: Any) -> str:
        return "cpu"

    def _plain(self, tensor: Any) -> Any:
        return tensor


class TorchTransport(HopliteTransport):
    """Tensors of torch in host memory. Receivers get private, writable copies."""

    _name = "HOPLITE"

    def _device(self, tensor: Any) -> str:
        return str(tensor.device.type)

    def _plain(self, tensor: Any) -> Any:
        return tensor.detach()

    async def _get(
        self, client: hoplite.aio.Client, id: str, count: int, buffers: Sequence[Any] | None
    ) -> list[Any]:
        if buffers is not None and count == 1:
            await client.get_into(id, buffers[0])
            return list(buffers)
        got = await client.get(id, copy=True)
        return self._carried([got] if count == 1 else list(got), buffers)


class NumpyTransport(HopliteTransport):
    """Arrays of numpy. Receivers get them read-only and in shared memory, as with Ray's store."""

    _name = "HOPLITE_NUMPY"

    async def _get(
        self, client: hoplite.aio.Client, id: str, count: int, buffers: Sequence[Any] | None
    ) -> list[Any]:
        if buffers is not None:
            raise TypeError("arrays of numpy cannot be received into buffers")
        got = await client.get(id)
        return [got] if count == 1 else list(got)

    def _carried(self, tensors: list[Any], buffers: Sequence[Any] | None) -> list[Any]:
        if buffers is not None:
            raise TypeError("arrays of numpy cannot be received into buffers")
        for array in tensors:
            array.flags.writeable = False
        return tensors


# Runs at import, because processes of Ray may import only this module.
_private.keep_serializers((TorchTransport._name, NumpyTransport._name))


def _failed(obj_id: str, error: BaseException) -> RayDirectTransportError:
    reason = (
        "the transfer was aborted"
        if isinstance(error, CancelledError)
        else f"{type(error).__name__}: {error}"
    )
    return RayDirectTransportError(  # type: ignore[no-untyped-call]
        f"hoplite could not fetch the object {obj_id}: {reason}"
    )
