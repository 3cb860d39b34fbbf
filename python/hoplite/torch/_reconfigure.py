"""Groups with changing members, for `init_process_group(..., enable_reconfigure=True)`.

Ranks exchange *handles*, which name their stores. Members call `reconfigure` with all handles and
an unused number, which determines the group's ids. So a group can grow, shrink, merge or split,
also after an abort.

`ReconfigurableGroup` overrides torch's rank and size: Python cannot set their C++ fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import hoplite
from hoplite._group import link as links
from hoplite._group import schedules
from hoplite._group.member import Group
from hoplite.errors import ConnectFailed
from hoplite.torch._backend import HopliteBackend, failed
from hoplite.torch._exit import still_open
from hoplite.torch._member import _UNSET
from hoplite.torch._rendezvous import agree, own_record
from hoplite.torch._work import Work


@dataclass(frozen=True)
class Handle:
    token: str
    host: str
    processes: int
    process: int
    socket: str
    is_private: bool


class ReconfigurableGroup(dist.ProcessGroup):
    def __init__(self, store: Any, backend: ReconfigurableBackend) -> None:
        super().__init__(store, backend._rank, backend._size)
        self._hoplite = backend

    def getRank(self) -> int:
        return self._hoplite._rank

    def getSize(self) -> int:
        return self._hoplite._size


def create_reconfigurable(options: Any) -> ReconfigurableGroup:
    rank, size = options.group_rank, options.group_size
    socket = agree(options.store, rank, size, options.timeout).socket
    backend = ReconfigurableBackend(None, rank, size, options.timeout)
    backend.begin(options.group_id, socket)
    group = ReconfigurableGroup(options.store, backend)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._register_backend(torch.device("cpu"), custom, backend)
    group._set_default_backend(custom)
    return group


class ReconfigurableBackend(HopliteBackend):
    supports_reconfigure = True
    # `False`, because subgroups would not change with the group.
    supports_splitting = False

    def begin(self, name: str, socket: str) -> None:
        self._name = name
        self._socket = socket
        self._token = secrets.token_hex(8)
        self._used: set[int] = set()

    def get_error(self) -> ErrorType:
        return ErrorType.SUCCESS

    def get_reconfigure_handle(self) -> str:
        record = own_record()
        try:
            hoplite.connect(self._socket).close()
        except ConnectFailed:
            # The rank with the private store has ended.
            self._socket = record.socket or hoplite.init().socket
        is_private = record.is_private or record.socket is None
        handle = Handle(
            self._token, record.host, record.processes, record.process, self._socket, is_private
        )
        return json.dumps(asdict(handle), sort_keys=True)

    def reconfigure(self, options: Any) -> Work:
        """Leaves the group, and joins the ranks of `options.handles`. The work ends when all have
        joined.

        Raises:
            RuntimeError: for a used number, and for invalid handles.
        """
        uuid, given = options.uuid, options.handles
        if uuid in self._used:
            raise RuntimeError(
                f"the uuid {uuid} was already used by this rank: each reconfigure needs another one"
            )
        texts = sorted(given) if isinstance(given, (set, frozenset)) else list(given)
        handles = [_parsed(text) for text in texts]
        tokens = [handle.token for handle in handles]
        if self._token not in tokens:
            raise RuntimeError("the handles do not contain the handle of this rank")
        if len(set(tokens)) < len(tokens):
            raise RuntimeError("the handles contain a handle twice")
        self._used.add(uuid)
        if self._members is not None:
            with contextlib.suppress(dist.DistBackendError):
                self._members.abandon(f"rank {self._rank} has gone on to another group")
            self._members = None
        rank, size = tokens.index(self._token), len(tokens)
        own = handles[rank]
        sockets = [_socket_of(handle, handles) for handle in handles]
        self._rank, self._size, self._socket = rank, size, sockets[rank]
        timeout = (
            options.timeout if options.timeout not in (None, _UNSET) else self._options._timeout
        )
        self._members = self._begin(uuid, texts, own, handles, sockets, timeout.total_seconds())
        still_open.add(self)
        return self._issue(
            "reconfigure", schedules.meet, [], SimpleNamespace(timeout=timeout), meets=True
        )

    def _begin(
        self,
        uuid: int,
        texts: list[str],
        own: Handle,
        handles: list[Handle],
        sockets: list[str],
        timeout: float,
    ) -> Group:
        name = hashlib.sha256(
            "\n".join([str(uuid), *(handle.token for handle in handles)]).encode()
        )
        prefixes = [f"torch/{name.hexdigest()[:16]}/"] * len(handles)
        neighbours = {
            peer: handle.process
            for peer, handle in enumerate(handles)
            if handle is not own and (handle.host, handle.processes) == (own.host, own.processes)
        }
        link = links.acquire(self._socket, "hoplite.torch")
        try:
            group = Group(link, prefixes, self._name, self._rank, failed, neighbours)
        except BaseException:
            link.release()
            raise
        if (
            len({(handle.host, socket) for handle, socket in zip(handles, sockets, strict=True)})
            > 1
        ):
            try:
                group.hello(timeout)
            except BaseException as error:
                group.abort(str(error))
                raise
        return group


def _parsed(text: Any) -> Handle:
    try:
        return Handle(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"this is no handle of the hoplite backend: {text!r}") from error


def _socket_of(handle: Handle, handles: list[Handle]) -> str:
    """Returns a rank's socket; instead of a private store's, a shared store's on its machine."""
    if not handle.is_private:
        return handle.socket
    here = [other for other in handles if other.host == handle.host]
    return min(here, key=lambda other: other.is_private).socket
