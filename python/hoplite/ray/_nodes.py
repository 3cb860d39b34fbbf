"""Starts, refreshes and stops the stores of all nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hoplite.errors import HopliteError
from hoplite.ray._connection import own
from hoplite.ray._labels import PLACE_KEYS, place_labels
from hoplite.ray._place import here
from hoplite.ray._private import alive_nodes
from hoplite.ray._supervisor import ACTORS, CREDENTIALS, Node, Settings, Supervisor, name_of

_HEAD = "node:__internal_head__"
_LOOPBACK = "127.0.0.1"
#: A supervisor answers calls while it starts or stops its store.
_CALLS_AT_ONCE = 8
_POLL_INTERVAL = 0.01

logger = logging.getLogger(__name__)


def start_on_all_nodes(
    *,
    memory: str | int | None = None,
    token_file: str | None = None,
    insecure: bool = False,
    socket: str | None = None,
    labels: Mapping[str, str] | None = None,
    store_options: Sequence[str] = (),
    timeout: float = 120.0,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    tls_name: str | None = None,
) -> list[Node]:
    """Starts a store on each node of the Ray cluster, and returns the nodes.

    A supervisor, an actor without a CPU, starts a store that ends with the node. Running stores
    are used, so every job may call this. Blocks until all stores are ready.

    Args:
        memory: The size of each new store, in bytes or as in `"64GiB"`; `None` for 30% of the
            machine.
        token_file: A file with a secret, at this path on each node, which only Ray's user may
            read. The stores listen on the network, and refuse peers without the secret.
        insecure: `True` lets the stores listen on the network without authentication: everybody
            who reaches a port can read, write and delete objects. Several machines need
            this, a token or certificates.
        socket: The socket of running stores, if it is not the default one.
        labels: Ray's labels for zone, pod, rack and host, as in `{"rack": "example.com/rack"}`.
            `None` takes labels of these names, after any slash, and Ray's own for the zone.
        store_options: Further flags of `hoplite-store`; `--labels` replaces the labels of Ray.
        timeout: Seconds to wait.
        tls_cert: A certificate on each node, for its address in Ray, or for `tls_name`.
        tls_key: The key, which only Ray's user may read.
        tls_ca: The authority of all certificates.
        tls_name: The name in all certificates.

    Without any of `token_file` and `tls_...`, the caller's environment decides
    (`HOPLITE_TOKEN_FILE` and so on), not the nodes'.

    Raises:
        RuntimeError: A store did not start, or ran already on some nodes only.
        ConnectFailed: No store listens at `socket`, or a running one refuses this user.
        ValueError: Several machines have no credentials and not `insecure`; or `labels` has an
            unknown key.
        ray.exceptions.GetTimeoutError: The timeout passed first.

    Examples:
        >>> nodes = hoplite.ray.start_on_all_nodes(memory="128MiB")
        >>> [node.state for node in nodes]
        ['running', 'running']
    """
    if unknown := set(labels or ()) - set(PLACE_KEYS):
        raise ValueError(
            f"the keys of labels are {', '.join(PLACE_KEYS)}, and not {', '.join(sorted(unknown))}"
        )
    credentials = {
        "token_file": token_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "tls_name": tls_name,
    }
    settings = Settings(
        None if memory is None else str(memory),
        insecure,
        socket,
        tuple(store_options),
        labels=None if labels is None else dict(labels),
        **_with_environment(credentials),
    )
    found = _run_on_all_nodes(settings, timeout)
    if settings.memory is not None:
        _warn_of_other_memory(found, settings.memory, timeout)
    return found


def _with_environment(credentials: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Takes all credentials from the environment if none are given, never a mixture."""
    if any(value is not None for value in credentials.values()):
        return credentials
    return {name: os.environ.get(f"HOPLITE_{name.upper()}") for name in CREDENTIALS}


def _run_on_all_nodes(settings: Settings, timeout: float) -> list[Node]:
    while True:
        nodes = alive_nodes()
        try:
            found = _attach_or_start(nodes, settings, timeout)
        except ray.exceptions.RayError:
            if alive_nodes() == nodes:
                raise
            continue
        return found


def _attach_or_start(nodes: list[Any], settings: Settings, timeout: float) -> list[Node]:
    supervisors = [_supervisor_of(node) for node in nodes]
    attached = _on_all(
        nodes, [supervisor.attach.remote(settings.socket) for supervisor in supervisors], timeout
    )
    if all(attached):
        found = _on_all(nodes, [supervisor.node.remote() for supervisor in supervisors], timeout)
    elif any(attached):
        have = ", ".join(
            node["NodeManagerAddress"]
            for node, is_there in zip(nodes, attached, strict=True)
            if is_there
        )
        raise RuntimeError(
            f"a store was running on {have} before, but not on the other nodes: start it there too; or stop it, call "
            "hoplite.ray.stop_on_all_nodes(), and try again"
        )
    else:
        found = _start(nodes, supervisors, settings, timeout)
    _check(nodes, supervisors, timeout)
    return found


def _warn_of_other_memory(found: list[Node], memory: str, timeout: float) -> None:
    if all(node.state == "attached" for node in found):
        return logger.warning("memory=%s has no effect: another program started the stores", memory)
    supervisors = [_known_supervisor(node) for node in alive_nodes()]
    known: list[Settings | None] = ray.get(
        [supervisor.settings.remote() for supervisor in supervisors if supervisor is not None],
        timeout=timeout,
    )
    if any(started is not None and started.memory != memory for started in known):
        logger.warning(
            "memory=%s has no effect on stores that run already: hoplite.ray.stop_on_all_nodes() "
            "stops them and deletes their objects",
            memory,
        )


def refresh(timeout: float = 120.0) -> list[Node]:
    """Starts a store on nodes that have joined the Ray cluster since, and returns all nodes.

    Tasks on new nodes do this too. Blocks until the stores are ready.

    Raises:
        RuntimeError: `start_on_all_nodes` was not called before. Its errors are possible, too.

    Examples:
        >>> len(hoplite.ray.refresh())
        2
    """
    for node in alive_nodes():
        supervisor = _known_supervisor(node)
        if supervisor is None:
            continue
        settings: Any = ray.get(supervisor.settings.remote(), timeout=timeout)
        if settings is None:
            continue
        # Uses the settings of the first start.
        return _run_on_all_nodes(settings, timeout)
    raise RuntimeError(
        "no store runs on this Ray cluster: call hoplite.ray.start_on_all_nodes() first"
    )


def stop_on_all_nodes(timeout: float = 120.0) -> None:
    """Stops all stores that `start_on_all_nodes` started, with their objects.

    In stores that ran before, deletes this Ray cluster's objects. Arrays stay readable. Blocks
    until the started stores have ended; then stores can be started again. Does nothing if none were
    started.

    Args:
        timeout: Seconds to wait.

    Raises:
        RuntimeError: A store could not be stopped; the message says where and why.
        ray.exceptions.GetTimeoutError: Names nodes that did not end in time.

    Examples:
        >>> hoplite.ray.stop_on_all_nodes()
        >>> len(hoplite.ray.start_on_all_nodes(memory="128MiB"))
        2
    """
    found = [
        (node, supervisor)
        for node in alive_nodes()
        if (supervisor := _known_supervisor(node)) is not None
    ]
    nodes, supervisors = [node for node, _ in found], [supervisor for _, supervisor in found]
    own().close()
    ends = time.monotonic() + timeout
    _on_all(nodes, [supervisor.stop.remote() for supervisor in supervisors], timeout)
    for supervisor in supervisors:
        ray.kill(supervisor, no_restart=True)
    here().withdraw()
    # Else a new start would find the ending supervisors.
    for node, supervisor in found:
        while _known_supervisor(node) == supervisor:
            if time.monotonic() > ends:
                raise ray.exceptions.GetTimeoutError(
                    f"the supervisor of {node['NodeManagerAddress']} did not end within {timeout} s"
                )
            time.sleep(_POLL_INTERVAL)


def _start(
    nodes: list[Any], supervisors: list[Any], settings: Settings, timeout: float
) -> list[Node]:
    addresses = {node["NodeManagerAddress"] for node in nodes}
    if len(addresses) > 1 and not settings.on_network:
        raise ValueError(
            f"the nodes are on {len(addresses)} machines, so the stores must listen on the network: say who may use them, "
            "with token_file=, or tls_cert=, tls_key= and tls_ca=; or insecure=True if everybody who can reach these "
            "machines may"
        )

    def start(index: int, directory: str | None) -> Any:
        # Loopback suffices on one machine.
        listen = nodes[index]["NodeManagerAddress"] if settings.on_network else _LOOPBACK
        return supervisors[index].start.remote(
            settings, listen, directory, place_labels(nodes[index], settings)
        )

    known = _on_all(nodes, [supervisor.directory.remote() for supervisor in supervisors], timeout)
    directory = next(filter(None, known), None)
    if directory is None:
        head = next((index for index, node in enumerate(nodes) if _HEAD in node["Resources"]), 0)
        _on_all([nodes[head]], [start(head, None)], timeout)
        (directory,) = _on_all([nodes[head]], [supervisors[head].directory.remote()], timeout)
    return _on_all(nodes, [start(index, directory) for index in range(len(nodes))], timeout)


def _check(nodes: list[Any], supervisors: list[Any], timeout: float) -> None:
    first, *others = supervisors
    mark = f"{here().prefix}mark/{secrets.token_hex(8)}"
    _on_all(nodes[:1], [first.put_mark.remote(mark)], timeout)
    try:
        sees = _on_all(
            nodes[1:], [supervisor.sees_mark.remote(mark) for supervisor in others], timeout
        )
    finally:
        # Ignores errors, because an error of `sees_mark` matters more.
        ray.wait([first.remove_mark.remote(mark)], timeout=timeout)
    blind = [
        node["NodeManagerAddress"] for node, does in zip(nodes[1:], sees, strict=True) if not does
    ]
    if blind:
        raise RuntimeError(
            f"the stores on {', '.join(blind)} do not see the objects of {nodes[0]['NodeManagerAddress']}: "
            "they are of another Hoplite cluster, or cannot reach its directory"
        )


def _known_supervisor(node: Any) -> Any:
    try:
        return ray.get_actor(name_of(node["NodeID"]), ACTORS)
    except ValueError:
        return None


def _supervisor_of(node: Any) -> Any:
    return (
        ray.remote(Supervisor)
        .options(
            name=name_of(node["NodeID"]),
            namespace=ACTORS,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=_CALLS_AT_ONCE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        .remote()
    )


def _on_all(nodes: Sequence[Any], answers: Sequence[Any], timeout: float) -> list[Any]:
    if answers:
        _, missing = ray.wait(list(answers), num_returns=len(answers), timeout=timeout)
        if missing:
            late = [
                node["NodeManagerAddress"]
                for node, answer in zip(nodes, answers, strict=True)
                if answer in missing
            ]
            raise ray.exceptions.GetTimeoutError(
                f"{', '.join(late)} did not answer within {timeout} s"
            )
    done = []
    for node, answer in zip(nodes, answers, strict=True):
        try:
            done.append(ray.get(answer))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, HopliteError):
                raise error.cause from None
            raise RuntimeError(f"on node {node['NodeManagerAddress']}: {error.cause}") from error
    return done
