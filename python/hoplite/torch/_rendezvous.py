"""Lets a group's ranks agree on their stores and on its name.

Each rank uses the store of its node. If there is none, and all ranks are on one node, they share a
private store, which ends with the rank that started it.

The ranks exchange records through torch's key-value store, which torchrun reuses after a restart.
To ignore old records, each rank sends a random number, and rank 0 replies with a new token. A rank
to which an old rank 0 replies times out.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

import hoplite
from hoplite import _node
from hoplite.errors import ConnectFailed, HopliteError

_QUESTION = "hoplite/question/{}"
_ANSWER = "hoplite/answer/{}"
_RECORD = "hoplite/{}/{}"
_PRIVATE = "hoplite/{}/private"
_FIRST_WAIT = timedelta(seconds=1)
_FIRST_INTERVAL = 0.0005
_LAST_INTERVAL = 0.02


class Record(NamedTuple):
    host: str
    """A name that is equal for processes that can use the same socket."""
    processes: int
    """The namespace of the process id."""
    process: int
    socket: str | None = None
    """The store that the rank has found or started."""
    is_private: bool = False
    """`True` if the rank has started the store."""
    error: str | None = None


class Agreement(NamedTuple):
    socket: str
    prefix: str
    neighbours: dict[int, int]
    """Process ids of other ranks on this machine, by rank."""
    is_shared: bool


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> Agreement:
    """Raises `DistBackendError` if a rank has a problem, such as no store."""
    # Rank 0 answers while this rank looks for its store.
    number = "" if rank == 0 else _request_token(store, rank)
    own = own_record()
    token = secrets.token_hex(8) if rank == 0 else _answer_to(store, number, timeout)
    keys = [_RECORD.format(token, peer) for peer in range(size)]
    store.set(keys[rank], json.dumps(own._asdict()))
    if rank == 0:
        _answer(store, token, keys, timeout)
    store.wait(keys, timeout)
    records = [Record(**json.loads(record)) for record in store.multi_get(keys)]
    for peer, record in enumerate(records):
        if record.error is not None:
            raise dist.DistBackendError(f"rank {peer} has no store: {record.error}")
    if all(record.socket is None or record.is_private for record in records):
        sockets: list[str | None] = [_private_socket(store, token, records, rank, timeout)] * size
    else:
        sockets = [_socket_of(record, records) for record in records]
    socket = sockets[rank]
    if socket is None or None in sockets:
        without = sorted({records[peer].host for peer in range(size) if sockets[peer] is None})
        raise dist.DistBackendError(f"there is no store on {', '.join(without)}; {_HINT}")
    return Agreement(
        socket=socket,
        prefix=f"torch/{token}/",
        neighbours={
            peer: record.process
            for peer, record in enumerate(records)
            if peer != rank and (record.host, record.processes) == (own.host, own.processes)
        },
        is_shared=len(
            {(record.host, socket) for record, socket in zip(records, sockets, strict=True)}
        )
        == 1,
    )


_HINT = "several nodes need a running hoplite-store each, with a common --directory"


def own_record() -> Record:
    about: dict[str, Any] = {
        "host": f"{platform.node()} ({_read('/proc/sys/kernel/random/boot_id')})",
        "processes": _inode("/proc/self/ns/pid"),
        "process": os.getpid(),
    }
    try:
        socket = hoplite.init(start=False).socket
        private = _node._state.store
        return Record(
            **about, socket=socket, is_private=private is not None and private.socket == socket
        )
    except ConnectFailed as error:
        is_absent = error.reason in ("NoSuchSocket", "NotListening")
        if is_absent and not os.environ.get("HOPLITE_SOCKET"):
            return Record(**about)
        return Record(**about, error=str(error))


def _socket_of(record: Record, records: list[Record]) -> str | None:
    """Returns the rank's socket, or the first one on its machine; never of a private store."""
    candidates = [record, *(other for other in records if other.host == record.host)]
    return next(
        (other.socket for other in candidates if other.socket and not other.is_private), None
    )


def _request_token(store: Store, rank: int) -> str:
    number = secrets.token_hex(8)
    store.set(_QUESTION.format(rank), number)
    return number


def _answer_to(store: Store, number: str, timeout: timedelta) -> str:
    store.wait([_ANSWER.format(number)], timeout)
    token: bytes = store.get(_ANSWER.format(number))
    return token.decode()


def _answer(store: Store, token: str, records: list[str], timeout: timedelta) -> None:
    """Sends the token to each rank, also to restarted ones, until all have put their records."""
    deadline = time.monotonic() + timeout.total_seconds()
    answered: set[bytes] = set()
    if len(records) > 1:
        questions = [_QUESTION.format(rank) for rank in range(1, len(records))]
        with contextlib.suppress(RuntimeError):
            store.wait(questions, min(timeout, _FIRST_WAIT))
    interval = _FIRST_INTERVAL
    while not store.check(records):
        missing = [rank for rank, record in enumerate(records) if not store.check([record])]
        for rank in missing:
            if store.check([_QUESTION.format(rank)]):
                number = store.get(_QUESTION.format(rank))
                if number not in answered:
                    store.set(_ANSWER.format(number.decode()), token)
                    answered.add(number)
        if time.monotonic() > deadline:
            raise dist.DistStoreError(
                f"after {timeout.total_seconds():g} s, these ranks have not come: {missing}"
            )
        time.sleep(interval)
        interval = min(2 * interval, _LAST_INTERVAL)


def _private_socket(
    store: Store, token: str, records: list[Record], rank: int, timeout: timedelta
) -> str | None:
    """Returns a private store's socket for all ranks; None if they are on several machines."""
    if len({record.host for record in records}) > 1:
        return None
    if (started := next((record.socket for record in records if record.socket), None)) is not None:
        return started
    if rank == 0:
        try:
            answer = {"socket": hoplite.init().socket}
        except (HopliteError, OSError) as error:
            answer = {"error": str(error)}
        store.set(_PRIVATE.format(token), json.dumps(answer))
    else:
        store.wait([_PRIVATE.format(token)], timeout)
        answer = json.loads(store.get(_PRIVATE.format(token)))
    if "error" in answer:
        raise dist.DistBackendError(f"rank 0 could not start a store: {answer['error']}")
    return answer["socket"]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
