"""Files of a Ray node, and the id prefixes of a Ray cluster."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import ray

from hoplite import _native
from hoplite._node import SOCKET_VARIABLE
from hoplite.ray import _private

NAMESPACE = "ray"


def _outer_socket() -> str | None:
    socket = Path(_native.default_socket_path())
    return None if socket.is_relative_to(_root() / NAMESPACE) else str(socket)


def _root() -> Path:
    # Not TMPDIR: all processes of a node must use the same directory.
    return Path(f"/tmp/hoplite-{os.geteuid()}")


#: Socket of a store outside Ray. None if a parent process exported a socket of Ray.
OUTER_SOCKET = _outer_socket()


@dataclass(frozen=True)
class Place:
    """The files and id prefixes of a node, equal in all its processes."""

    cluster: str
    """A hash of Ray's session, which changes when Ray restarts."""
    node: str
    directory: Path

    @functools.cached_property
    def socket(self) -> Path:
        """The store's socket, or a link to the socket of another program's store."""
        return self.directory / "store.sock"

    @functools.cached_property
    def leases(self) -> Path:
        return self.directory / "leases"

    @functools.cached_property
    def prefix(self) -> str:
        """Separates Ray clusters that share a store."""
        return f"{NAMESPACE}/{self.cluster}/"

    def job_prefix(self, job_id: str) -> str:
        return f"{self.prefix}j-{job_id}/"

    @property
    def exists(self) -> bool:
        return self.directory.is_dir()

    def export(self) -> None:
        """Makes `hoplite.init()` use this store, also in children."""
        if os.environ.get(SOCKET_VARIABLE) != str(self.socket):
            os.environ[SOCKET_VARIABLE] = str(self.socket)

    def withdraw(self) -> None:
        if os.environ.get(SOCKET_VARIABLE) == str(self.socket):
            del os.environ[SOCKET_VARIABLE]

    def create(self) -> None:
        """Raises `PermissionError` if the directory is another user's, who could replace the
        socket."""
        root = _root()
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        if status.st_uid != os.geteuid() or not root.is_dir() or root.is_symlink():
            raise PermissionError(f"{root} belongs to somebody else")
        self.leases.mkdir(mode=0o700, parents=True, exist_ok=True)


def here() -> Place:
    _private.check_is_running()
    context = ray.get_runtime_context()
    return place(context.get_session_name(), context.get_node_id())


@functools.lru_cache(maxsize=16)
def place(session: str, node_id: str) -> Place:
    cluster = hashlib.sha256(session.encode()).hexdigest()[:8]
    node = node_id[:12]
    return Place(cluster, node, _root() / NAMESPACE / cluster / node)
