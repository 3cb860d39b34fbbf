"""A stream of the tensors of a state dict."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

import hoplite
from hoplite._pickles import rebuild_tensor
from hoplite._timeouts import Deadline, TimeLimit
from hoplite.torch._opened import opened
from hoplite.torch._reading import check_filled
from hoplite.torch._state import Path, copy_overlap, dtype_of, named
from hoplite.torch._versions import Fetched, Version, Wanted

if TYPE_CHECKING:
    from typing import Self


class stream_state_dict:
    """The tensors of one version, with their names, as they arrive.

        with hoplite.torch.stream_state_dict("policy") as tensors:
            model.load_weights(tensors)

    An iterator and a context manager. Each step blocks until the next tensor is here. Further
    arguments and errors are as for `get_state_dict`. If the version is lost on the way, raises
    `VersionLost`: discard its tensors.

    Args:
        copy: `True` yields private tensors. `False` yields tensors in the memory of the store;
            **writing to one ends the process**.

    Examples:
        >>> hoplite.torch.put_state_dict("policy", {"a": torch.zeros(2), "b": torch.ones(2)})
        1
        >>> with hoplite.torch.stream_state_dict("policy") as tensors:
        ...     sorted((name, float(tensor.sum())) for name, tensor in tensors)
        [('a', 0.0), ('b', 2.0)]
    """

    version: Version
    """The name of the version."""

    def __init__(
        self,
        name: str,
        *,
        version: Version | None = None,
        newer_than: Version | None = None,
        copy: bool = True,
        client: hoplite.Client | None = None,
        timeout: TimeLimit = "default",
    ) -> None:
        self._about = name
        self._copy = copy
        self._opened = opened(name, client)
        self._link, versions = self._opened.__enter__()
        self._reading: Any = None
        try:
            wanted, deadline = Wanted(version, newer_than), Deadline(timeout)
            turn = self._link.run(versions.find(wanted, deadline))
            self.version = turn.version
            self._reading = versions.read(turn, wanted, lambda _: True, deadline)
            self._tensors = self._run()
        except BaseException:
            self.close()
            raise

    def _run(self) -> Iterator[tuple[str, torch.Tensor]]:
        started: dict[Path, tuple[torch.Tensor, int]] = {}
        while (item := self._link.run(_next(self._reading))) is not None:
            for entry, contents in item.contents():
                if entry.is_whole:
                    in_place = not self._copy
                    yield (
                        named(entry.path),
                        rebuild_tensor(contents, entry.dtype, entry.shape, in_place=in_place),
                    )
                    continue
                tensor, filled = started.pop(entry.path, (None, 0))
                if tensor is None:
                    tensor = torch.empty(entry.shape, dtype=dtype_of(entry.dtype), device="cpu")
                whole = entry._replace(offsets=(0,) * len(entry.shape), sizes=entry.shape)
                filled += copy_overlap(entry, contents, whole, tensor)
                if filled == tensor.numel():
                    yield named(entry.path), tensor
                else:
                    started[entry.path] = tensor, filled
            for path, (dtype, shape) in item.page.empty.items():
                yield named(path), torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
        about = f"version {self.version!r} of {self._about!r}"
        check_filled({path: (n, tensor.numel()) for path, (tensor, n) in started.items()}, about)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self

    def __next__(self) -> tuple[str, torch.Tensor]:
        try:
            return next(self._tensors)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._reading is not None:
            self._link.run(self._reading.aclose())
            self._reading = None
        self._opened.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next(reading: Any) -> Fetched | None:
    try:
        fetched: Fetched = await anext(reading)
    except StopAsyncIteration:
        return None
    return fetched
