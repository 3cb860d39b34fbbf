"""The keeper: an actor on each node of Ray, which sees to the store of the node."""

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
from hoplite.ray import _guardian, _leases, _private
from hoplite.ray._connection import Connection, is_absent, twice
from hoplite.ray._place import NAMESPACE, OUTER_SOCKET, Place, here
from hoplite.ray._reclaim import Due, Reclaimer, claims_on, unknown

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: The namespace of Ray in which the keepers have their names.
ACTORS = "hoplite"
#: How often a keeper looks whether somebody is gone.
_INTERVAL = 1.0
#: How often one of the keepers looks, for all, whether a node or a job is gone: that asks the one service that all ask.
_LOOK_INTERVAL = 5.0
#: How often each of the others looks whether it is the one now, for each node that there is: so that service is asked at
#: most 20 times a second by them, however many nodes there are.
_OTHERS_INTERVAL_PER_NODE = 0.05
#: How long a keeper waits for another one, or for a store, before it leaves the matter for the next time.
_PATIENCE = 10.0
#: How long a store may take to start and to stop, at most.
_START_TIMEOUT = 2 * _guardian.START_TIMEOUT + 5
_STOP_TIMEOUT = 2 * _guardian.STOP_TIMEOUT + 5
#: How many objects are deleted at once: far less than a store takes in one request.
_BATCH = 1024
#: The files with the settings of a store that was started here, and with the process id of the raylet of a node that
#: uses the store of somebody else.
_SETTINGS, _RAYLET = "settings.json", "raylet.pid"
#: The settings that daemons prove with that they belong to the cluster; their flags and variables are spelled alike.
CREDENTIALS = ("token_file", "tls_cert", "tls_key", "tls_ca", "tls_name")


@dataclass(frozen=True)
class Settings:
    """How the stores are to be run; the same on all nodes."""

    memory: str | None
    insecure: bool
    socket: str | None
    """Where a store listens on each node that somebody else started; None for where one listens by default."""
    options: tuple[str, ...]
    """Further flags of `hoplite-store`."""
    token_file: str | None = None
    """A secret that the daemons share."""
    labels: dict[str, str] | None = None
    """Which label of Ray's nodes says their zone, pod, rack and host; None for those of these names."""
    tls_cert: str | None = None
    """The certificate of the daemons of a node, with its key and the authority; and the name that all of them are for."""
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_name: str | None = None

    @property
    def on_network(self) -> bool:
        """Whether the daemons may be reached from other machines."""
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
    """The name of the keeper of a node."""
    return f"keeper-{node_id}"


class Keeper:
    """Starts the store of its node, or attaches to one; and deletes objects there that nobody needs any more.

    What it has to know is on the disk of the node: if it is killed, Ray starts another one, which goes on.
    """

    def __init__(self) -> None:
        self._place = here()
        self._raylet = _private.raylet_pid()
        self._lock = threading.RLock()
        self._connection = Connection()
        self._reclaimer = Reclaimer()
        # Which nodes there were, and which jobs had ended; none yet, so that what happened before is looked at too.
        self._nodes: set[str] | None = None
        self._ended_jobs: set[str] = set()
        self._forgotten_jobs: set[str] = set()
        self._next_look = 0.0
        self._is_stopped = threading.Event()
        threading.Thread(target=self._keep, name="hoplite-keeper", daemon=True).start()

    def node(self) -> Node:
        """What there is."""
        state: Literal["running", "attached", "stopped"] = "stopped"
        if self._place.socket.is_symlink():
            state = "attached"
        elif self._is_guarded():
            state = "running"
        node_id = ray.get_runtime_context().get_node_id()
        return Node(node_id, str(self._place.socket), state)

    def settings(self) -> Settings | None:
        """The settings of the store; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            known = json.loads((self._place.directory / _SETTINGS).read_text())
            return Settings(**{**known, "options": tuple(known["options"])})
        return None

    def directory(self) -> str | None:
        """The address of the directory that runs on this node; None if none does."""
        with contextlib.suppress(FileNotFoundError):
            address: str | None = json.loads((self._place.directory / _guardian.READY).read_text())[
                "directory"
            ]
            return address
        return None

    def attach(self, socket: str | None) -> bool:
        """Uses the store that somebody else has started at `socket`. Returns whether there is one.

        Raises:
            ConnectFailed: if a socket was named, and no store listens there; or if this process may not use it.
        """
        with self._lock:
            if self._place.socket.is_symlink():
                return True
            if self._is_guarded():
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
                _guardian.write(self._place.directory / _RAYLET, str(self._raylet))
            self._clean_up_after_others()
            return True

    def start(self, settings: Settings, listen: str, directory: str | None, labels: dict[str, str]) -> Node:
        """Starts a store, unless there is one; and a directory, if there is none to join.

        Args:
            listen: the address of this node; ports are chosen here.
            directory: where the directory listens.
            labels: where this node is.
        Raises:
            RuntimeError: says why it did not start, or that the node is ending.
            ConnectFailed: if there is one, which does not answer.
        """
        with self._lock:
            if self._is_orphan():
                raise RuntimeError("the raylet of the node is gone")
            if not self._place.socket.is_symlink() and not self._is_guarded():
                spec = self._spec(settings, listen, directory, labels)
                self._place.create()
                self._remember(settings)
                _guardian.write(self._place.directory / _guardian.SPEC, json.dumps(spec))
                try:
                    self._start_guardian()
                except RuntimeError:
                    # It is not to be tried again with what is wrong.
                    self._stop_guardian()
                    _remove(self._place)
                    raise
            self._await_store()
            return self.node()

    def claims(self, token: str) -> set[str]:
        """The objects that a process has made, by its token, and that living processes of this node claim."""
        return claims_on(token, _leases.look(self._place))

    def tokens(self) -> set[str]:
        """The leases of this node, of the living and the dead."""
        return {lease.token for lease in _leases.look(self._place)}

    def put_mark(self, id: str) -> None:
        """Puts a few bytes that `sees_mark` can look for elsewhere."""
        self._perform(lambda client: client.put(id, b"here", confirm=True))

    def sees_mark(self, id: str) -> bool:
        """Whether the store of this node hears of an object, within a while."""
        return bool(self._perform(lambda client: client.wait([id], timeout=_PATIENCE))[0])

    def remove_mark(self, id: str) -> None:
        """Deletes an object."""
        self._perform(lambda client: client.delete(id, timeout=_PATIENCE))

    def stop(self) -> None:
        """Stops the store and the directory, if they were started here; deletes the objects of this Ray cluster otherwise.

        Nothing of it is left on the node.
        """
        with self._lock:
            self._is_stopped.set()
            if self._place.socket.is_symlink():
                with contextlib.suppress(HopliteError):
                    self._delete_all(self._place.prefix)
            self._connection.close()
            self._stop_guardian()
            _remove(self._place)

    # What it does by itself

    def _keep(self) -> None:
        while not self._is_stopped.wait(_INTERVAL):
            try:
                with self._lock:
                    if self._is_stopped.is_set():
                        return
                    self._mend()
                if self._place.leases.exists():
                    now = time.monotonic()
                    if now >= self._next_look:
                        self._next_look = now + self._look_around()
                    self._reclaim(self._reclaimer.look(_leases.look(self._place), now))
            except Exception:
                if self._is_stopped.is_set():
                    return
                # It is tried again, for ever: there is nobody else to do it.
                logger.warning(
                    "The keeper of %s has a problem, and tries again.", self._place.node, exc_info=True
                )
                self._is_stopped.wait(_PATIENCE)

    def _mend(self) -> None:
        """Starts another guardian, if there should be one and is none."""
        is_wanted = (self._place.directory / _guardian.SPEC).exists() and not self._is_orphan()
        if is_wanted and not self._is_guarded():
            logger.warning("The guardian of %s is gone; starting another one.", self._place.node)
            self._start_guardian()

    def _look_around(self) -> float:
        """Sees to what is nobody's: one of the keepers does it for all. Returns when to look again, in seconds."""
        nodes = {str(node["NodeID"]) for node in _private.alive_nodes()}
        is_for_all = ray.get_runtime_context().get_node_id() == min(nodes)
        if is_for_all:
            if self._nodes is None or not self._nodes <= nodes:
                self._adopt_leases()
            self._forget_jobs(_private.ended_jobs())
        self._nodes = nodes
        return _LOOK_INTERVAL if is_for_all else max(_LOOK_INTERVAL, _OTHERS_INTERVAL_PER_NODE * len(nodes))

    def _adopt_leases(self) -> None:
        """Adopts the leases of nodes that are gone."""
        # In this order: who has put an object had a lease before.
        ids = self._list(f"{self._place.prefix}{_leases.PREFIX}")
        self._reclaimer.adopt(unknown(ids, self._ask_all("tokens")))

    def _forget_jobs(self, ended: set[str]) -> None:
        """Deletes what the tasks of jobs have put that are over."""
        for job in sorted(ended - self._forgotten_jobs):
            self._delete_all(self._place.job_prefix(job))
        # Once more the next time: its workers may have put something until now.
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
            claimed = self._ask_all("claims", token)
            self._delete([id for id in made if id not in claimed])

    def _forget(self, token: str) -> None:
        _leases.forget(self._place, token)
        self._reclaimer.forget(token)

    def _ask_all(self, method: str, *arguments: str) -> set[str]:
        """What the keepers of all nodes answer, together.

        Raises:
            ray.exceptions.RayError: if a node does not answer that Ray takes for alive. Then nothing is known.
        """
        answers: list[ray.ObjectRef[set[str]]] = []
        for node in _private.alive_nodes():
            # A node without a keeper has no leases.
            with contextlib.suppress(ValueError):
                keeper = ray.get_actor(name_of(node["NodeID"]), ACTORS)
                answers.append(getattr(keeper, method).remote(*arguments))
        return set[str]().union(*ray.get(answers, timeout=_PATIENCE))

    def _list(self, prefix: str) -> list[str]:
        return self._perform(lambda client: [str(known.id) for known in client.list(prefix)])

    def _delete(self, ids: Iterable[str]) -> None:
        left = sorted(ids)
        for start in range(0, len(left), _BATCH):
            some = left[start : start + _BATCH]
            self._perform(functools.partial(Client.delete, ids=some, timeout=_PATIENCE))

    def _delete_all(self, prefix: str) -> None:
        self._delete(self._list(prefix))

    def _perform(self, act: Callable[[Client], T]) -> T:
        return twice(lambda: self._connection.client(self._place.socket), act)

    # The guardian

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
            shard = [program("hoplite-directory"), "--print-addresses", *common, "--listen", f"{listen}:0"]
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
        """Waits until the store answers, which may have been killed just now."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.client(self._place.socket).contains("ray")
                return
            except (ConnectFailed, ConnectionLost):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _start_guardian(self) -> None:
        place = self._place.directory
        for name in (_guardian.READY, _guardian.FAILED):
            (place / name).unlink(missing_ok=True)
        # Isolated, and without packages: it needs none, and is small without.
        command = [sys.executable, "-I", "-S", _guardian.__file__, str(place)]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        deadline = time.monotonic() + _START_TIMEOUT
        while not (place / _guardian.READY).exists():
            if (place / _guardian.FAILED).exists():
                raise RuntimeError((place / _guardian.FAILED).read_text())
            if time.monotonic() > deadline:
                raise RuntimeError(f"the store did not start in time; see {place / _guardian.LOG}")
            time.sleep(0.01)

    def _stop_guardian(self) -> None:
        # It is not to be started again.
        (self._place.directory / _guardian.SPEC).unlink(missing_ok=True)
        deadline = time.monotonic() + _STOP_TIMEOUT
        while self._is_guarded():
            # It may not have written its process id yet, or be removing its files, or just have ended.
            with contextlib.suppress(ValueError, FileNotFoundError, ProcessLookupError):
                pid = int((self._place.directory / _guardian.LOCK).read_text())
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline else signal.SIGKILL)
            time.sleep(0.05)

    def _is_orphan(self) -> bool:
        """Whether the node has ended, and so will this process, and nothing must be started any more."""
        return self._raylet is not None and os.getppid() != self._raylet

    def _is_guarded(self) -> bool:
        try:
            lock = os.open(self._place.directory / _guardian.LOCK, os.O_RDWR | os.O_CLOEXEC)
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
        _guardian.write(self._place.directory / _SETTINGS, json.dumps(asdict(settings)))

    def _clean_up_after_others(self) -> None:
        """Deletes from the store what Ray clusters have left that were on this machine, and ended without `stop`."""
        for marker in self._place.directory.parent.parent.glob(f"*/*/{_RAYLET}"):
            other = Place(marker.parent.parent.name, marker.parent.name, marker.parent)
            try:
                raylet = marker.read_text()
            except FileNotFoundError:
                # Another keeper of this machine has just done it.
                continue
            if other != self._place and not Path(f"/proc/{raylet}").exists():
                self._delete_all(f"{NAMESPACE}/{other.cluster}/")
                _remove(other)


def _remove(place: Place) -> None:
    shutil.rmtree(place.directory, ignore_errors=True)
    for parent in place.directory.parents[:3]:
        with contextlib.suppress(OSError):
            parent.rmdir()
