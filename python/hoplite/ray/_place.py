"""Where on a machine the things of a Ray node are, and how the objects of a Ray cluster are called."""

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

#: The names of all objects that this package makes for Ray begin with it.
NAMESPACE = "ray"


def _outer_socket() -> str | None:
    socket = Path(_native.default_socket_path())
    return None if socket.is_relative_to(_root() / NAMESPACE) else str(socket)


def _root() -> Path:
    # Not where TMPDIR says: all processes of a node must agree.
    return Path(f"/tmp/hoplite-{os.geteuid()}")


#: Where a store listens by default that somebody else has started: as the environment was before `Place.export`. None if
#: it was exported by the process that started Ray, which used another node or another Ray.
OUTER_SOCKET = _outer_socket()


@dataclass(frozen=True)
class Place:
    """A node of a Ray cluster, on the machine that it is on.

    Every process of the node finds the same one, without asking anybody. Several nodes may be on one machine.
    """

    cluster: str
    """Short for the session of Ray; another one after Ray was started anew."""
    node: str
    """Short for the id of the node."""
    directory: Path

    @functools.cached_property
    def socket(self) -> Path:
        """Where the store listens; a link, if it was started by somebody else."""
        return self.directory / "store.sock"

    @functools.cached_property
    def leases(self) -> Path:
        """Who is alive, and what depends on it; see `_leases`."""
        return self.directory / "leases"

    @functools.cached_property
    def prefix(self) -> str:
        """How the ids of all objects of this Ray cluster begin: a store may serve several."""
        return f"{NAMESPACE}/{self.cluster}/"

    def job_prefix(self, job_id: str) -> str:
        """How the ids of the objects begin that the tasks of a job put."""
        return f"{self.prefix}j-{job_id}/"

    @property
    def exists(self) -> bool:
        """Whether there is, or is about to be, a store."""
        return self.directory.is_dir()

    def export(self) -> None:
        """Has `hoplite.init()` find the store, in this process and in those that it starts."""
        if os.environ.get(SOCKET_VARIABLE) != str(self.socket):
            os.environ[SOCKET_VARIABLE] = str(self.socket)

    def withdraw(self) -> None:
        """Undoes `export`."""
        if os.environ.get(SOCKET_VARIABLE) == str(self.socket):
            del os.environ[SOCKET_VARIABLE]

    def create(self) -> None:
        """Makes the directory.

        Raises:
            PermissionError: if somebody else has made it, who could then listen at our socket.
        """
        root = _root()
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        if status.st_uid != os.geteuid() or not root.is_dir() or root.is_symlink():
            raise PermissionError(f"{root} belongs to somebody else")
        self.leases.mkdir(mode=0o700, parents=True, exist_ok=True)


def here() -> Place:
    """The node of this process.

    Raises:
        RuntimeError: if Ray was not initialized.
    """
    _private.check_is_running()
    context = ray.get_runtime_context()
    return place(context.get_session_name(), context.get_node_id())


# It is asked for in every call.
@functools.lru_cache(maxsize=16)
def place(session: str, node_id: str) -> Place:
    """The node `node_id` of the Ray cluster with this session."""
    cluster = hashlib.sha256(session.encode()).hexdigest()[:8]
    node = node_id[:12]
    return Place(cluster, node, _root() / NAMESPACE / cluster / node)
