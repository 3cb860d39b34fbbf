"""How the ranks of a group agree on their stores, and on the name of the group.

Each rank uses the store of its node, as `hoplite.init` finds it. If no rank has one, and all are on one node, they use a
private one, which ends with the rank that has started it: one that a rank has already, for another group, or else the
first rank starts one. What a rank has to tell the others it tells through the key-value store that torch gives to the group.

torchrun gives the same one again to the processes that it starts in the place of those that have failed, with all that
these had put there. So rank 0 chooses a token for each meeting, and tells it to a rank as the answer to a number that only
this process of that rank has put: what is left over is not taken for new. (A rank 0 that has not been ended yet
may still answer a new rank, which then waits for its timeout.)
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
#: How long rank 0 waits until all have asked before it answers those who have.
_FIRST_WAIT = timedelta(seconds=1)
#: How often rank 0 looks who has come: at first, since they come soon after it has answered them; and at last.
_FIRST_INTERVAL = 0.0005
_LAST_INTERVAL = 0.02


class Record(NamedTuple):
    """What a rank tells the others."""

    host: str
    """Equal for processes that can use the same socket."""
    processes: int
    """Which namespace its process id is of."""
    process: int
    socket: str | None = None
    """Of the store that it has found, or has started."""
    is_private: bool = False
    """Whether it has started it."""
    error: str | None = None
    """Why it cannot take part."""


class Agreement(NamedTuple):
    """What all ranks know."""

    socket: str
    """Of the store that this rank uses."""
    prefix: str
    """What the ids of the group begin with."""
    neighbours: dict[int, int]
    """The processes of the other ranks of this machine, by rank."""
    is_shared: bool
    """Whether all ranks use one and the same store."""


def agree(store: Store, rank: int, size: int, timeout: timedelta) -> Agreement:
    """Agrees with the other ranks, which do the same.

    Raises:
        DistBackendError: if there are ranks without a store, or one has another problem.
    """
    # Before this rank looks for its store: meanwhile it is answered.
    number = "" if rank == 0 else _ask(store, rank)
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
        is_shared=len({(record.host, socket) for record, socket in zip(records, sockets, strict=True)}) == 1,
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
        return Record(**about, socket=socket, is_private=private is not None and private.socket == socket)
    except ConnectFailed as error:
        is_absent = error.reason in ("NoSuchSocket", "NotListening")
        if is_absent and not os.environ.get("HOPLITE_SOCKET"):
            return Record(**about)
        return Record(**about, error=str(error))


def _socket_of(record: Record, records: list[Record]) -> str | None:
    """The socket that a rank uses: the one that it has found, else that of the first rank of its machine that has."""
    candidates = [record, *(other for other in records if other.host == record.host)]
    return next((other.socket for other in candidates if other.socket and not other.is_private), None)


def _ask(store: Store, rank: int) -> str:
    """Asks rank 0 for the token of this meeting. Returns the number of the question."""
    number = secrets.token_hex(8)
    store.set(_QUESTION.format(rank), number)
    return number


def _answer_to(store: Store, number: str, timeout: timedelta) -> str:
    store.wait([_ANSWER.format(number)], timeout)
    token: bytes = store.get(_ANSWER.format(number))
    return token.decode()


def _answer(store: Store, token: str, records: list[str], timeout: timedelta) -> None:
    """Tells the token to the others until all have put their records."""
    deadline = time.monotonic() + timeout.total_seconds()
    answered: set[bytes] = set()
    if len(records) > 1:
        questions = [_QUESTION.format(rank) for rank in range(1, len(records))]
        # What stores of torch raise when the time is over.
        with contextlib.suppress(RuntimeError):
            # All of them have asked then, unless one has in an earlier meeting.
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
    """The socket of a store that a rank has started, or rank 0 starts now; None if not all ranks could use it."""
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
