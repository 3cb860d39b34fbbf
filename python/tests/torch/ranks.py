from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stores import NODE_GRACE, PATIENCE

TIMEOUT = PATIENCE / 2

_RUN_ID = "TORCHELASTIC_RUN_ID"

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "accelerate",
        "hoplite.torch._backend",
        "pytest",
        "pytorch_lightning",
        "sklearn.datasets",
        "torch._dynamo",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
    ]
)


@dataclass
class Setting:
    sockets: Sequence[str | None] = ()
    """The socket of each rank; by default, ranks find their stores."""
    backend: str = "hoplite"
    timeout: float = TIMEOUT
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `init_process_group`."""
    is_launched: bool = False
    """`True` for ranks that torchrun starts."""


def run(
    size: int, function: Callable[..., Any], *arguments: Any, setting: Setting | None = None
) -> list[Any]:
    """Runs `function(rank, ...)` on each rank. A killed rank's result is None."""
    setting = setting or Setting()
    store = _store_of_torchrun() if setting.is_launched else None
    with tempfile.TemporaryDirectory() as directory:
        ends = []
        processes = []
        for rank in range(size):
            end, other = _context.Pipe(duplex=False)
            environment = {"HOPLITE_NODE_GRACE": NODE_GRACE, **setting.environment}
            if setting.sockets and (socket := setting.sockets[rank]):
                environment["HOPLITE_SOCKET"] = socket
            environment["HOPLITE_BINARIES"] = os.environ.get("HOPLITE_BINARIES", "")
            if store is not None:
                environment |= _as_torchrun_says(store, rank, size)
            task = pickle.dumps((function, arguments, setting.options))
            process = _context.Process(
                target=_be_rank,
                args=(
                    other,
                    rank,
                    size,
                    setting.backend,
                    setting.timeout,
                    environment,
                    directory,
                    task,
                ),
                name=f"rank {rank}",
            )
            process.start()
            other.close()
            ends.append(end)
            processes.append(process)
        try:
            outcomes = [_outcome(rank, end) for rank, end in enumerate(ends)]
            failed = [
                f"rank {rank}: {value}"
                for rank, (outcome, value) in enumerate(outcomes)
                if outcome == "raised"
            ]
            assert not failed, "\n".join(failed)
            return [value for _, value in outcomes]
        finally:
            for process in processes:
                process.join(PATIENCE if sys.exc_info()[0] is None else 1.0)
                is_late = process.is_alive()
                process.kill()
                process.join()
                assert not is_late or sys.exc_info()[0] is not None, f"{process.name} does not end"


def _store_of_torchrun() -> Any:
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _as_torchrun_says(store: Any, rank: int, size: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        _RUN_ID: "tests",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def _outcome(rank: int, end: Connection) -> tuple[str, Any]:
    if not end.poll(PATIENCE):
        return "raised", "it does not answer"
    try:
        outcome, value = end.recv()
    except EOFError:
        return "killed", None
    return outcome, value


def _be_rank(
    end: Connection,
    rank: int,
    size: int,
    backend: str,
    timeout: float,
    environment: dict[str, str],
    directory: str,
    task: bytes,
) -> None:
    os.environ.pop("HOPLITE_SOCKET", None)
    os.environ.update({name: value for name, value in environment.items() if value})
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        function, arguments, options = pickle.loads(task)
        if _RUN_ID not in environment:
            dist.init_process_group(
                backend,
                init_method=f"file://{Path(directory) / 'rendezvous'}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
                **options,
            )
        value = function(rank, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        end.send(("raised", traceback.format_exc()))
        raise
    else:
        end.send(("returned", value))


def is_installed() -> bool:
    return any(
        entry.name == "hoplite"
        for entry in importlib.metadata.entry_points(group="torch.distributed.backends")
    )
