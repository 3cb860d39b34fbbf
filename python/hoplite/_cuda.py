"""Copies tensors between CUDA devices and the store, through pinned memory.

A device copies pinned memory faster, and without the processor. Two pinned buffers alternate: the
device uses one while this process copies the other, so a call pins at most 32 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from hoplite import _native
from hoplite._answers import OnProgress, followed, settled
from hoplite._memory import memory_of, raw_tensor
from hoplite._timeouts import Deadline, TimeLimit

if TYPE_CHECKING:
    import torch

    from hoplite._memory import Bytes
    from hoplite._serialize import Encoded

#: Bytes. At 50 GB/s a copy takes 0.3 ms, a hundred times the cost of beginning it.
CHUNK_BYTES = 16 << 20
#: For smaller tensors, torch's own copy into unpinned memory is as fast.
LEAST_BYTES = 1 << 20
BUFFERS = 2


class OnDevice(Sequence[Any]):
    """The bytes of a tensor on a CUDA device, in place of host buffers.

    `put` and `get_into` copy chunk by chunk. Other calls iterate over a copy in host memory.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch

        self._torch = torch
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        self._bytes = flat.view(torch.uint8)
        self.nbytes = self._bytes.numel()
        # Recorded now, because torch's current stream may change before the copies begin.
        self._ready = torch.cuda.current_stream(flat.device).record_event()

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        return [memory_of(self._bytes.cpu(), self._torch)][index]

    def chunks(self) -> Generator[Bytes, None, None]:
        """Yields the bytes in pinned memory. The next chunk invalidates the one before."""
        with _Lane(self._torch, self._bytes, self._ready) as lane:
            lane.begin(0, _to_host)
            for index in range(lane.count):
                if index + 1 < lane.count:
                    lane.begin(index + 1, _to_host)
                yield lane.room(index)

    def rooms(self) -> Generator[Bytes, None, None]:
        """Yields pinned buffers. Copies each to the device once the caller has filled it."""
        with _Lane(self._torch, self._bytes, self._ready) as lane:
            for index in range(lane.count):
                yield lane.room(index)
                lane.begin(index, _to_device)


def pieces_of(tensor: torch.Tensor, torch: Any) -> Sequence[Any]:
    if tensor.device.type == "cuda" and tensor.numel() * tensor.element_size() >= LEAST_BYTES:
        return OnDevice(tensor)
    return [raw_tensor(tensor.cpu(), torch)]


def size_of(pieces: Sequence[Any]) -> int:
    if isinstance(pieces, OnDevice):
        return pieces.nbytes
    return sum(memoryview(piece).nbytes for piece in pieces)


def _to_host(on_device: Any, pinned: Any) -> None:
    pinned.copy_(on_device, non_blocking=True)


def _to_device(on_device: Any, pinned: Any) -> None:
    on_device.copy_(pinned, non_blocking=True)


class _Lane:
    def __init__(self, torch: Any, contents: Any, ready: Any) -> None:
        self._cuda = torch.cuda
        self._parts = contents.split(CHUNK_BYTES)
        self.count = len(self._parts)
        size = min(CHUNK_BYTES, contents.numel())
        used = range(min(BUFFERS, self.count))
        self._pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in used]
        self._copied = [torch.cuda.Event() for _ in used]
        self._stream = torch.cuda.Stream(contents.device)
        # Earlier work on the device may still write or read the tensor.
        self._stream.wait_event(ready)

    def __enter__(self) -> _Lane:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.synchronize()

    def begin(self, index: int, copy: Callable[[Any, Any], None]) -> None:
        with self._cuda.stream(self._stream):
            copy(self._parts[index], self._of(index))
        self._copied[index % BUFFERS].record(self._stream)

    def room(self, index: int) -> Bytes:
        self._copied[index % BUFFERS].synchronize()
        return self._of(index).numpy()

    def _of(self, index: int) -> Any:
        return self._pinned[index % BUFFERS][: self._parts[index].numel()]


async def put(
    native: _native.Client | _native.AsyncClient,
    id: Any,
    encoded: Encoded,
    terms: tuple[TimeLimit, int, int, tuple[str | None, float | None, str] | None, bool],
    on_progress: OnProgress,
) -> None:
    """Puts a tensor. `terms`: timeout, confirmation, replicas, lifetime and quorum."""
    pieces, dtype, shape, user = encoded
    assert isinstance(pieces, OnDevice)
    progress = None if on_progress is None else _native.Progress(on_progress)
    created = native.create(id, pieces.nbytes, dtype, shape, user, *terms)
    writer = await settled(created)
    with closing(pieces.chunks()) as chunks:
        for chunk in chunks:
            await followed(native, progress, "write", writer, chunk)
    await settled(native.seal(writer))


async def read(
    native: _native.Client | _native.AsyncClient,
    reader: _native.Reader,
    room: OnDevice,
    deadline: Deadline,
    on_progress: OnProgress,
) -> None:
    progress = None if on_progress is None else _native.Progress(on_progress)
    with closing(room.rooms()) as rooms:
        for chunk in rooms:
            await followed(native, progress, "read", reader, chunk, deadline.left())
