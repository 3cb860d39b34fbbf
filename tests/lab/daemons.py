"""Hoplite in a lab: shards, a store on each host, and clients."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from . import registry
from .errors import LabError
from .lab import Host, Lab

_START_TIMEOUT_S: Final = 300
_END_TIMEOUT_S: Final = 60
_STAT_TIMEOUT_S: Final = 300
_DIRECTORY_PORT: Final = 7401
_STORE_PORT: Final = 7402
_LOG_LINES: Final = 10


class Daemon:
    def __init__(self, name: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        timer = threading.Timer(_START_TIMEOUT_S, self.process.kill)
        timer.start()
        is_ready = any(line == "ready\n" for line in self.process.stdout)
        timer.cancel()
        if not is_ready:
            raise LabError(f"{self.name} did not get ready: {self.last_words()}")

    def last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def is_running(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> None:
        if self.is_running():
            self.process.terminate()

    def kill(self) -> None:
        if self.is_running():
            self.process.kill()
        self.process.communicate()

    def wait(self, timeout_s: float) -> None:
        try:
            self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


class Hoplite:
    """Starts shards and stores when entered, and ends them when left.

    Commands on a host find its store through `HOPLITE_SOCKET`.
    """

    def __init__(
        self,
        lab: Lab,
        programs: Path,
        memory: str | Sequence[str] = "256MiB",
        shard_hosts: Sequence[str] = ("h0",),
        store_arguments: Sequence[str] = ("--no-prefault",),
        labels: Mapping[str, str] | None = None,
        security: Sequence[str] = ("--insecure",),
        store_hosts: Sequence[str] | None = None,
        spill_limit: str | None = None,
        shard_arguments: Sequence[str] = (),
        environment: Callable[[str], Mapping[str, str]] = lambda host: {},
        shard_rail: int = 0,
    ) -> None:
        """Args:
            labels: of stores, such as `rack=0`, by host.
            store_hosts: the hosts with a store; by default all.
            spill_limit: the size of each store's spill files; by default stores do not spill.
            environment: variables of the daemon on a host.
            shard_rail: the rail of the shards' addresses.
        """
        self.lab = lab
        self.programs = programs.resolve()
        self.memory = [memory] * lab.plan.hosts if isinstance(memory, str) else list(memory)
        self.store_arguments = list(store_arguments)
        self.shard_arguments = list(shard_arguments)
        self.labels = dict(labels or {})
        self.security = list(security)
        self.shards: dict[str, Daemon] = {}
        self.stores: dict[str, Daemon] = {}
        self._environment = environment
        self._shard_rail = shard_rail
        self._spill_limit = spill_limit
        self._shard_hosts = [lab.host(name) for name in shard_hosts]
        self._store_hosts = (
            lab.hosts if store_hosts is None else [lab.host(name) for name in store_hosts]
        )
        self._files = registry.STATE / lab.name

    def __enter__(self) -> Self:
        for program in ("hoplite-directory", "hoplite-store", "hoplite"):
            if not (self.programs / program).is_file():
                raise LabError(f"{self.programs / program} is missing: build it first")
        try:
            for host in self._shard_hosts:
                self.start_shard(host)
            for host in self._store_hosts:
                self.start_store(host)
            for daemon in self.stores.values():
                daemon.await_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends stores before shards, so that they can leave the directory."""
        self._end()

    def start_shard(self, host: Host) -> None:
        arguments = ["--listen", self._shard_address(host), "--print-addresses"]
        arguments += [*self.security, *self.shard_arguments]
        self.shards[host.name] = self._start(host, "hoplite-directory", arguments)
        self.shards[host.name].await_ready()

    def replace_shard(self, at: Host, old: Host, new: Host) -> None:
        """Starts a shard on `new` in place of the one on `old`, which keeps running."""
        self.start_shard(new)
        arguments = ("shards", "replace", self._shard_address(old), self._shard_address(new))
        changed = self.client(at, *arguments, capture_output=True, text=True, check=False)
        if changed.returncode:
            raise LabError(f"{old.name} is not replaced by {new.name}: {changed.stderr}")
        self._shard_hosts[self._shard_hosts.index(old)] = new

    def start_store(self, host: Host) -> None:
        directory = ",".join(map(self._shard_address, self._shard_hosts))
        arguments = [
            "--listen",
            ",".join(f"{address}:{_STORE_PORT}" for address in host.addresses),
            "--print-addresses",
            *self.security,
        ]
        arguments += ["--directory", directory, "--node-id", host.name]
        arguments += ["--memory", self.memory[self.lab.hosts.index(host)], *self.store_arguments]
        if host.name in self.labels:
            arguments += ["--labels", self.labels[host.name]]
        if self._spill_limit is not None:
            self.spill_directory(host.name).mkdir(exist_ok=True)
            arguments += ["--spill-dir", str(self.spill_directory(host.name))]
            arguments += ["--spill-limit", self._spill_limit]
        self.stores[host.name] = self._start(host, "hoplite-store", arguments)

    def spill_directory(self, host: str) -> Path:
        return self._files / f"{host}.spill"

    def socket(self, host: str) -> str:
        return str(self._files / f"{host}.sock")

    def port(self, host: str) -> int:
        """Returns the TCP port of the host's store, or else of its shard."""
        return _STORE_PORT if host in self.stores else _DIRECTORY_PORT

    def client(
        self, host: Host, *arguments: str, **options: Any
    ) -> "subprocess.CompletedProcess[Any]":
        return host.run([self.programs / "hoplite", *arguments], **options)

    def status(self, host: Host) -> dict[str, Any]:
        result = self.client(host, "status", "--json", capture_output=True, text=True, check=False)
        found = json.loads(result.stdout) if result.returncode == 0 else {}
        assert isinstance(found, dict)
        return found

    def stat(self, host: Host, name: str) -> str:
        """Runs `hoplite stat`, again while the store has no session."""
        deadline = time.monotonic() + _STAT_TIMEOUT_S
        while True:
            done = self.client(host, "stat", name, capture_output=True, text=True)
            if "cannot be reached" not in done.stderr or time.monotonic() > deadline:
                return str(done.stdout)
            time.sleep(0.05)

    def _start(self, host: Host, program: str, arguments: list[str]) -> Daemon:
        log = self._files / f"{program}-{host.name}.log"
        variables = [f"{name}={value}" for name, value in self._environment(host.name).items()]
        with log.open("a") as file:
            process = host.popen(
                ["env", *variables, self.programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        return Daemon(f"{program} on {host.name}", process, log)

    def _end(self) -> None:
        for group in (self.stores, self.shards):
            for daemon in group.values():
                daemon.terminate()
            deadline = time.monotonic() + _END_TIMEOUT_S
            for daemon in group.values():
                daemon.wait(max(0.1, deadline - time.monotonic()))

    def _shard_address(self, host: Host) -> str:
        return f"{host.addresses[self._shard_rail]}:{_DIRECTORY_PORT}"
