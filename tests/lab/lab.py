"""A lab: hosts that exist while it is entered."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from . import registry, system
from .errors import LabError
from .plan import SWITCH, Plan, namespace, rail_name

_PACKAGE: Final = Path(__file__).resolve().parent
ENTER: Final = _PACKAGE / "enter.sh"
RSH: Final = _PACKAGE / "rsh.sh"
_FLOW_CAP: Final = _PACKAGE / "flow_cap.c"

# A port's state in linux/if_bridge.h.
_DISABLED: Final = 0
_FORWARDING: Final = 3

_RUN_TIMEOUT_S: Final = 600
_NOBODY: Final = "02:00:00:00:00:00"


@dataclass(frozen=True)
class Traffic:
    """Bytes over a link, headers included."""

    received_bytes: int
    sent_bytes: int

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(
            self.received_bytes - earlier.received_bytes,
            self.sent_bytes - earlier.sent_bytes,
        )


@dataclass(frozen=True)
class Host:
    lab: str
    name: str
    addresses: tuple[str, ...]

    @property
    def address(self) -> str:
        return self.addresses[0]

    def command(self, command: Sequence[str | Path]) -> list[str]:
        return [str(ENTER), self.lab, self.name, *map(str, command)]

    def popen(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(command), **options)

    def run(
        self, command: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """As `subprocess.run`, with a timeout of ten minutes by default."""
        return subprocess.run(self.command(command), **{"timeout": _RUN_TIMEOUT_S, **options})


class Lab:
    """Builds a lab when entered, and removes it when left. Not thread-safe.

    If the owner is killed, a watcher removes the lab; if both are killed, the next lab does.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = ""
        self.allowed_congestion_control = False
        self._watcher: subprocess.Popen[bytes] | None = None

    @classmethod
    def existing(cls, name: str | None = None) -> Self:
        """Another process's lab with this name, or the only one. Must not be entered."""
        names = [
            found
            for found in registry.names()
            if registry.is_owned(found) and name in (None, found)
        ]
        if len(names) != 1:
            raise LabError(
                f"there are several labs, name one: {', '.join(names)}"
                if names
                else "there is no such lab"
            )
        plan = registry.facts(names[0]).get("plan")
        if not isinstance(plan, dict):
            raise LabError(f"{names[0]} is not ready")
        lab = cls(Plan(**plan))
        lab.name = names[0]
        return lab

    def __enter__(self) -> Self:
        system.require()
        with registry.locked():
            registry.remove_leftovers()
            self.name = registry.new_name()
            try:
                self._build()
            except BaseException:
                registry.remove(self.name)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with registry.locked():
            registry.remove(self.name)
        if self._watcher is not None:
            self._watcher.communicate()

    def _build(self) -> None:
        self.allowed_congestion_control = registry.allow_congestion_control(
            self.plan.congestion_control
        )
        directory = registry.record(self.name, {"plan": asdict(self.plan)})
        (directory / "hosts").write_text(self.plan.hosts_file())
        if self.plan.flow_cap_bits_s is not None:
            rate = f"-DHOPLITE_FLOW_CAP_BYTES_S={self.plan.flow_cap_bits_s // 8}UL"
            system.compile_library(_FLOW_CAP, directory / "flow_cap.so", rate)
        self._watch()
        for name in self.plan.namespaces(self.name):
            system.run(["ip", "netns", "add", name])
        switch = namespace(self.name, SWITCH)
        self._set(switch, {})
        system.configure(switch, self.plan.switch_script())
        for index, host in enumerate(self.plan.host_names):
            member = namespace(self.name, host)
            self._set(member, self.plan.sysctls())
            system.configure(member, self.plan.host_script(self.name, index))
        system.configure(switch, self.plan.ports_script())

    def _set(self, member: str, sysctls: dict[str, str]) -> None:
        """Sets `sysctls`, and turns off IPv6, whose messages would be counted."""
        off = "echo 1 | tee /proc/sys/net/ipv6/conf/*/disable_ipv6 >/dev/null 2>&1 || true"
        lines = [f"echo {value} > /proc/sys/{path}" for path, value in sysctls.items()]
        script = "\n".join(["set -e", *lines, off])
        system.run(["nsenter", f"--net=/run/netns/{member}", "--", "sh", "-c", script])

    def _watch(self) -> None:
        self._watcher = subprocess.Popen(
            [sys.executable, "-m", _PACKAGE.name, "watch", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=_PACKAGE.parent,
            start_new_session=True,
        )

    @property
    def hosts(self) -> list[Host]:
        names = enumerate(self.plan.host_names)
        return [Host(self.name, name, self.plan.addresses(index)) for index, name in names]

    def host(self, name: str) -> Host:
        if name not in self.plan.host_names:
            raise LabError(f"there is no host {name!r}; there are {_list(self.plan.host_names)}")
        return self.hosts[self.plan.host_names.index(name)]

    def cut(self, link: str) -> None:
        """Drops all packets of `h1`, `h1.eth0` or `rack1`, without an error for the sender."""
        self._set_ports(link, _DISABLED)

    def repair(self, link: str) -> None:
        self._set_ports(link, _FORWARDING)

    def set_rate(self, link: str, rate_bits_s: int) -> None:
        for port in self._ports(link):
            host, _, device = port.partition(".")
            ends = ((self.host(host).name, device or rail_name(0)), (SWITCH, port))
            for member, end in ends:
                command = ["tc", "-netns", namespace(self.name, member)]
                system.run([*command, *self.plan.slowed(end, rate_bits_s)])

    def cut_between(self, one: str, other: str) -> None:
        """As `cut`, for packets between two hosts."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def repair_between(self, one: str, other: str) -> None:
        self.repair_one_way(one, other)
        self.repair_one_way(other, one)

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """As `cut`, for packets in one direction."""
        # Frames go to an address that does not exist.
        self._neighbour(sender, receiver, "replace", "lladdr", _NOBODY, "nud", "permanent")

    def repair_one_way(self, sender: str, receiver: str) -> None:
        self._neighbour(sender, receiver, "del")

    def _neighbour(self, sender: str, receiver: str, verb: str, *what: str) -> None:
        command = ["ip", "-netns", namespace(self.name, self.host(sender).name), "neigh", verb]
        for rail, address in enumerate(self.host(receiver).addresses):
            system.run([*command, address, *what, "dev", rail_name(rail)])

    def kill(self, host: str) -> None:
        """Kills all processes. Cuts the link first, so that no packet reveals their end."""
        self.cut(self.host(host).name)
        registry.end_processes([namespace(self.name, host)])

    def traffic(self) -> dict[str, Traffic]:
        text = system.run(
            ["ip", "-netns", namespace(self.name, SWITCH), "-json", "-stats", "link", "show"]
        )
        found = {port["ifname"]: port["stats64"] for port in json.loads(text)}
        return {
            link: Traffic(
                received_bytes=sum(found[port]["tx"]["bytes"] for port in self.plan.ports(link)),
                sent_bytes=sum(found[port]["rx"]["bytes"] for port in self.plan.ports(link)),
            )
            for link in self.plan.links
        }

    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOPLITE_LAB": self.name}

    def _ports(self, link: str) -> list[str]:
        if link not in self.plan.links:
            raise LabError(f"there is no link {link!r}; there are {_list(self.plan.links)}")
        return self.plan.ports(link)

    def _set_ports(self, link: str, state: int) -> None:
        command = ["bridge", "-netns", namespace(self.name, SWITCH), "link", "set"]
        for port in self._ports(link):
            system.run([*command, "dev", port, "state", str(state)])


def watch(name: str, owner: IO[bytes]) -> None:
    """Removes the lab when the owner's end of the pipe is closed."""
    owner.read()
    with registry.locked():
        if name in registry.names():
            registry.remove(name)


def _list(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{names[0]} to {names[-1]}"
