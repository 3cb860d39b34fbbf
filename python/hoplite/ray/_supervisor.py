"""Supervisor: an actor that manages the store of its Ray node."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import ray

from hoplite import Client, ConnectFailed, ConnectionLost, HopliteError, connect
from hoplite._node import LOG_VARIABLE
from hoplite._programs import program
from hoplite.ray import _launcher, _leases, _private
from hoplite.ray._connection import Connection, is_absent, twice
from hoplite.ray._place import NAMESPACE, OUTER_SOCKET, Place, here
from hoplite.ray._reclaim import Due, Reclaimer, claims_on, unknown

T = TypeVar("T")

logger = logging.getLogger(__name__)

ACTORS = "hoplite"
#: Seconds between checks for ended processes.
_INTERVAL = 1.0
#: Seconds between checks for ended nodes and jobs.
_CLEAN_UP_INTERVAL = 5.0
#: Seconds per node: all supervisors together send at most 20 queries a second.
_OTHERS_INTERVAL_PER_NODE = 0.05
_WAIT_LIMIT = 10.0
_START_TIMEOUT = 2 * _launcher.START_TIMEOUT + 5
_STOP_TIMEOUT = 2 * _launcher.STOP_TIMEOUT + 5
_BATCH = 1024
#: Files: the store's settings; the raylet's process id, for another program's store.
_SETTINGS, _RAYLET = "settings.json", "raylet.pid"
CREDENTIALS = ("token_file", "tls_cert", "tls_key", "tls_ca", "tls_name")


@dataclass(frozen=True)
class Settings:
    memory: str | None
    insecure: bool
    socket: str | None
    """The socket of stores that other programs started; None for the default."""
    options: tuple[str, ...]
    """Further flags of `hoplite-store`."""
    token_file: str | None = None
    """A file with a secret that the daemons share."""
    labels: dict[str, str] | None = None
    """The names of Ray's labels for zone, pod, rack and host; None for labels of these names."""
    tls_cert: str | None = None
    """The file of a node's certificate. The next fields are the files of its key and authority, and
    the name in all certificates."""
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_name: str | None = None

    @property
    def on_network(self) -> bool:
        return self.insecure or self.token_file is not None or self.tls_cert is not None


@dataclass(frozen=True)
class Node:
    """A node of the Ray cluster, and its store.

    Examples:
        >>> [node.state for node in hoplite.ray.refresh()]
        ['running', 'running']
    """

    node_id: str
    """The id of the node in Ray."""
    socket: str
    """The socket of the store, which `hoplite.ray.client()` finds."""
    state: Literal["running", "attached", "stopped"]
    """`"running"` if Hoplite started the store, `"attached"` if it ran before, else `"stopped"`."""


def name_of(node_id: str) -> str:
    return f"supervisor-{node_id}"


class Supervisor:
    """Manages the store of its node, and deletes unneeded objects. All state is on disk, for a
    restarted actor.
    """

    def __init__(self) -> None:
        self._place = here()
        self._raylet = _private.raylet_pid()
        self._lock = threading.RLock()
        self._connection = Connection()
        self._reclaimer = Reclaimer()
        # The living nodes at the last check.
        self._nodes: set[str] | None = None
        self._ended_jobs: set[str] = set()
        self._forgotten_jobs: set[str] = set()
        self._next_clean_up = 0.0
        self._is_stopped = threading.Event()
        threading.Thread(target=self._keep, name="hoplite-supervisor", daemon=True).start()

    def node(self) -> Node:
        state: Literal["running", "attached", "stopped"] = "stopped"
        if self._place.socket.is_symlink():
            state = "attached"
        elif self._has_launcher():
            state = "running"
        node_id = ray.get_runtime_context().get_node_id()
        return Node(node_id, str(self._place.socket), state)

    def settings(self) -> Settings | None:
        with contextlib.suppress(FileNotFoundError):
            known = json.loads((self._place.directory / _SETTINGS).read_text())
            return Settings(**{**known, "options": tuple(known["options"])})
        return None

    def directory(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            address: str | None = json.loads((self._place.directory / _launcher.READY).read_text())[
                "directory"
            ]
            return address
        return None

    def attach(self, socket: str | None) -> bool:
        """Uses another program's store. Returns `False` if there is none.

        Raises:
            ConnectFailed: if no store listens at a given socket, or it refuses this process.
        """
        with self._lock:
            if self._place.socket.is_symlink():
                return True
            if self._has_launcher():
                return False
            if self._is_orphan():
                raise RuntimeError("the raylet of the node is gone")
            expected = OUTER_SOCKET if socket is None else socket
            if expected is None:
                return False
            try:
                with connect(expected) as client:
                    target = os.path.abspath(client.socket)
            except ConnectFailed as error:
                if socket is not None or not is_absent(error):
                    raise
                return False
            self._place.create()
            self._remember(Settings(None, False, socket, ()))
            self._place.socket.unlink(missing_ok=True)
            self._place.socket.symlink_to(target)
            if self._raylet is not None:
                _launcher.write(self._place.directory / _RAYLET, str(self._raylet))
            self._clean_up_other_clusters()
            return True

    def start(
        self, settings: Settings, listen: str, directory: str | None, labels: dict[str, str]
    ) -> Node:
        """Starts a store unless one runs, and a directory shard if `directory` is None.

        Raises:
            RuntimeError: if the store did not start, or the node is ending.
            ConnectFailed: if a running store does not answer.
        """
        with self._lock:
            if self._is_orphan():
                raise RuntimeError("the raylet of the node is gone")
            if not self._place.socket.is_symlink() and not self._has_launcher():
                spec = self._spec(settings, listen, directory, labels)
                self._place.create()
                self._remember(settings)
                _launcher.write(self._place.directory / _launcher.SPEC, json.dumps(spec))
                try:
                    self._start_launcher()
                except RuntimeError:
                    self._stop_launcher()
                    _remove(self._place)
                    raise
            self._await_store()
            return self.node()

    def claims(self, token: str) -> set[str]:
        """Returns the objects of `token`'s process that living processes of this node claim."""
        return claims_on(token, _leases.look(self._place))

    def tokens(self) -> set[str]:
        return {lease.token for lease in _leases.look(self._place)}

    def put_mark(self, id: str) -> None:
        self._perform(lambda client: client.put(id, b"here", confirm=True))

    def sees_mark(self, id: str) -> bool:
        return bool(self._perform(lambda client: client.wait([id], timeout=_WAIT_LIMIT))[0])

    def remove_mark(self, id: str) -> None:
        self._perform(lambda client: client.delete(id, timeout=_WAIT_LIMIT))

    def stop(self) -> None:
        """Stops the daemons, and removes all files on the node. If another program started the
        store, only deletes this Ray cluster's objects.
        """
        with self._lock:
            self._is_stopped.set()
            if self._place.socket.is_symlink():
                with contextlib.suppress(HopliteError):
                    self._delete_all(self._place.prefix)
            self._connection.close()
            self._stop_launcher()
            _remove(self._place)

    # Background work

    def _keep(self) -> None:
        while not self._is_stopped.wait(_INTERVAL):
            try:
                with self._lock:
                    if self._is_stopped.is_set():
                        return
                    self._restart_launcher()
                if self._place.leases.exists():
                    now = time.monotonic()
                    if now >= self._next_clean_up:
                        self._next_clean_up = now + self._clean_up_cluster()
                    self._reclaim(self._reclaimer.look(_leases.look(self._place), now))
            except Exception:
                if self._is_stopped.is_set():
                    return
                logger.warning(
                    "The supervisor of %s has a problem, and tries again.",
                    self._place.node,
                    exc_info=True,
                )
                self._is_stopped.wait(_WAIT_LIMIT)

    def _restart_launcher(self) -> None:
        is_wanted = (self._place.directory / _launcher.SPEC).exists() and not self._is_orphan()
        if is_wanted and not self._has_launcher():
            logger.warning("The launcher of %s is gone; starting another one.", self._place.node)
            self._start_launcher()

    def _clean_up_cluster(self) -> float:
        """Cleans up after ended nodes and jobs, on the first living node. Returns the seconds until
        the next call.
        """
        nodes = {str(node["NodeID"]) for node in _private.alive_nodes()}
        is_for_all = ray.get_runtime_context().get_node_id() == min(nodes)
        if is_for_all:
            if self._nodes is None or not self._nodes <= nodes:
                self._adopt_leases()
            self._forget_jobs(_private.ended_jobs())
        self._nodes = nodes
        if is_for_all:
            return _CLEAN_UP_INTERVAL
        return max(_CLEAN_UP_INTERVAL, _OTHERS_INTERVAL_PER_NODE * len(nodes))

    def _adopt_leases(self) -> None:
        # Lists objects before leases, because a process takes its lease before its puts.
        ids = self._list(f"{self._place.prefix}{_leases.PREFIX}")
        self._reclaimer.adopt(unknown(ids, self._query_all("tokens")))

    def _forget_jobs(self, ended: set[str]) -> None:
        for job in sorted(ended - self._forgotten_jobs):
            self._delete_all(self._place.job_prefix(job))
        # Deletes a job's objects twice, because workers may put objects after the first time.
        self._forgotten_jobs = ended & self._ended_jobs
        self._ended_jobs = ended

    def _reclaim(self, due: Due) -> None:
        if not due:
            return
        self._delete(due.claimed)
        for token in due.producers:
            prefix = f"{self._place.prefix}{token}/"
            if not (made := self._list(prefix)):
                self._forget(token)
                continue
            claimed = self._query_all("claims", token)
            self._delete([id for id in made if id not in claimed])

    def _forget(self, token: str) -> None:
        _leases.forget(self._place, token)
        self._reclaimer.forget(token)

    def _query_all(self, method: str, *arguments: str) -> set[str]:
        """Returns the union of all supervisors' answers.

        Raises:
            ray.exceptions.RayError: if a living node does not answer.
        """
        answers: list[ray.ObjectRef[set[str]]] = []
        for node in _private.alive_nodes():
            # A node without a supervisor has no leases.
            with contextlib.suppress(ValueError):
                supervisor = ray.get_actor(name_of(node["NodeID"]), ACTORS)
                answers.append(getattr(supervisor, method).remote(*arguments))
        return set[str]().union(*ray.get(answers, timeout=_WAIT_LIMIT))

    def _list(self, prefix: str) -> list[str]:
        return self._perform(lambda client: [str(known.id) for known in client.list(prefix)])

    def _delete(self, ids: Iterable[str]) -> None:
        left = sorted(ids)
        for start in range(0, len(left), _BATCH):
            some = left[start : start + _BATCH]
            self._perform(functools.partial(Client.delete, ids=some, timeout=_WAIT_LIMIT))

    def _delete_all(self, prefix: str) -> None:
        self._delete(self._list(prefix))

    def _perform(self, act: Callable[[Client], T]) -> T:
        return twice(lambda: self._connection.client(self._place.socket), act)

    # The launcher

    def _spec(
        self, settings: Settings, listen: str, directory: str | None, labels: dict[str, str]
    ) -> dict[str, Any]:
        common = ["--cluster", f"ray-{self._place.cluster}"]
        if settings.insecure:
            common.append("--insecure")
        for name in CREDENTIALS:
            if (value := getattr(settings, name)) is not None:
                common += [f"--{name.replace('_', '-')}", value]
        store = [program("hoplite-store"), "--print-addresses", *common]
        store += ["--listen", f"{listen}:0", "--socket", str(self._place.socket)]
        store += ["--node-id", f"ray-{self._place.node}", *settings.options]
        if settings.memory is not None:
            store += ["--memory", settings.memory]
        if labels:
            store += ["--labels", ",".join(f"{key}={value}" for key, value in labels.items())]
        shard = None
        if directory is not None:
            store += ["--directory", directory]
        else:
            shard = [
                program("hoplite-directory"),
                "--print-addresses",
                *common,
                "--listen",
                f"{listen}:0",
            ]
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == LOG_VARIABLE or not name.startswith("HOPLITE_")
        }
        return {
            "raylet": self._raylet,
            "store": store,
            "directory": shard,
            "environment": {**kept, "NO_COLOR": "1"},
        }

    def _await_store(self) -> None:
        deadline = time.monotonic() + _WAIT_LIMIT
        while True:
            try:
                self._connection.client(self._place.socket).contains("ray")
                return
            except (ConnectFailed, ConnectionLost):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _start_launcher(self) -> None:
        place = self._place.directory
        for name in (_launcher.READY, _launcher.FAILED):
            (place / name).unlink(missing_ok=True)
        # Without site packages, to stay small.
        command = [sys.executable, "-I", "-S", _launcher.__file__, str(place)]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        deadline = time.monotonic() + _START_TIMEOUT
        while not (place / _launcher.READY).exists():
            if (place / _launcher.FAILED).exists():
                raise RuntimeError((place / _launcher.FAILED).read_text())
            if time.monotonic() > deadline:
                raise RuntimeError(f"the store did not start in time; see {place / _launcher.LOG}")
            time.sleep(0.01)

    def _stop_launcher(self) -> None:
        (self._place.directory / _launcher.SPEC).unlink(missing_ok=True)
        deadline = time.monotonic() + _STOP_TIMEOUT
        while self._has_launcher():
            # A starting or ending launcher may have no process id.
            with contextlib.suppress(ValueError, FileNotFoundError, ProcessLookupError):
                pid = int((self._place.directory / _launcher.LOCK).read_text())
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.05)

    def _is_orphan(self) -> bool:
        """`True` if the node has ended: no process may be started."""
        return self._raylet is not None and os.getppid() != self._raylet

    def _has_launcher(self) -> bool:
        try:
            lock = os.open(self._place.directory / _launcher.LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _remember(self, settings: Settings) -> None:
        _launcher.write(self._place.directory / _SETTINGS, json.dumps(asdict(settings)))

    def _clean_up_other_clusters(self) -> None:
        """Deletes the objects of this machine's Ray clusters that have ended without `stop`."""
        for marker in self._place.directory.parent.parent.glob(f"*/*/{_RAYLET}"):
            other = Place(marker.parent.parent.name, marker.parent.name, marker.parent)
            try:
                raylet = marker.read_text()
            except FileNotFoundError:
                continue
            if other != self._place and not Path(f"/proc/{raylet}").exists():
                self._delete_all(f"{NAMESPACE}/{other.cluster}/")
                _remove(other)


def _remove(place: Place) -> None:
    shutil.rmtree(place.directory, ignore_errors=True)
    for parent in place.directory.parents[:3]:
        with contextlib.suppress(OSError):
            parent.rmdir()
