"""The parts of a lab, and the commands that build it. Executes nothing.

The figures of a link, measured with iperf3 on Linux 6.18:

* A token *bucket* of 1 ms of the rate. A larger bucket lets more of each message pass unshaped.
* *Segments* (GSO) of at most 16 KiB. With 64 KiB, a hop of 200 Mbit/s delays messages by 2.6 ms.
* A *queue* at a switch's port of 10 ms of the rate, at least 512 KiB as in commodity switches:
  sixteen hosts can send 32 KiB each to one without a loss.
* A queue at the host of 1000 packets, Linux's default.

One stream then gets 1448/1514 = 95.6% of the rate as payload.
"""

import re
from dataclasses import dataclass
from typing import Final

SWITCH: Final = "switch"

_MTU_BYTES: Final = 1500
_SEGMENT_BYTES: Final = 16 * 1024
_BUCKET_S: Final = 0.001
_PORT_QUEUE_S: Final = 0.010
_MIN_PORT_QUEUE_BYTES: Final = 512 * 1024
_HOST_QUEUE_BYTES: Final = 1000 * 1514
_MAX_HOSTS: Final = 1000
_MAX_RAILS: Final = 8
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def parse_rate(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.strip().lower())
    rate = float(match[1]) * _UNITS[match[2]] if match else 0
    if rate < 1:
        raise ValueError(f"{text!r} is no rate; write it like 200mbit or 1gbit")
    return int(rate)


@dataclass(frozen=True)
class Plan:
    """Attributes:
        rate_bits_s: the rate of each host's link, in each direction.
        racks: the number of racks, with consecutive hosts. Each rack has a bridge; the middle
            bridge joins the racks.
        in_turn: `True` if hosts are placed in the racks in turn.
        uplink_bits_s: the rate between a rack and the middle bridge; by default a host's rate.
        congestion_control: with bbr, the streams into one host share its link unfairly.
        flow_cap_bits_s: the highest rate of one TCP connection, as in some clouds.
        rails: the links of each host, each in its own subnet.
    """

    hosts: int
    rate_bits_s: int = 200_000_000
    racks: int = 1
    uplink_bits_s: int | None = None
    in_turn: bool = False
    congestion_control: str = "cubic"
    flow_cap_bits_s: int | None = None
    rails: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= _MAX_HOSTS:
            raise ValueError(f"a lab has 1 to {_MAX_HOSTS} hosts, not {self.hosts}")
        if not 1 <= self.racks <= self.hosts:
            raise ValueError(f"{self.hosts} hosts cannot stand in {self.racks} racks")
        if min(self.rate_bits_s, self.uplink_rate_bits_s) < 1_000_000:
            raise ValueError("links slower than 1mbit are not shaped well")
        if self.flow_cap_bits_s is not None and self.flow_cap_bits_s < 1_000_000:
            raise ValueError("flows slower than 1mbit are not paced well")
        if not 1 <= self.rails <= _MAX_RAILS:
            raise ValueError(f"a host has 1 to {_MAX_RAILS} rails, not {self.rails}")
        if self.rails > 1 and self.racks > 1:
            raise ValueError("hosts with several rails stand in one rack")

    @property
    def uplink_rate_bits_s(self) -> int:
        return self.uplink_bits_s or self.rate_bits_s

    @property
    def host_names(self) -> list[str]:
        return [f"h{index}" for index in range(self.hosts)]

    @property
    def rack_names(self) -> list[str]:
        return [f"rack{index}" for index in range(self.racks)] if self.racks > 1 else []

    @property
    def links(self) -> list[str]:
        hosts = self.host_names if self.rails > 1 else []
        rails = [port for name in hosts for port in self.ports(name)]
        return self.host_names + self.rack_names + rails

    def ports(self, link: str) -> list[str]:
        """Returns the switch's ports of a link; a host means all its rails."""
        rails = self.rails if link in self.host_names else 0
        return [self.on_rail(link, rail) for rail in range(rails)] or [link]

    def on_rail(self, name: str, rail: int) -> str:
        return f"{name}.{rail_name(rail)}" if self.rails > 1 else name

    def rack_of(self, host: int) -> int:
        return host % self.racks if self.in_turn else host * self.racks // self.hosts

    @staticmethod
    def address(host: int, rail: int = 0) -> str:
        return f"10.{77 + rail}.{host // 250}.{host % 250 + 1}"

    def addresses(self, host: int) -> tuple[str, ...]:
        return tuple(self.address(host, rail) for rail in range(self.rails))

    def namespaces(self, lab: str) -> list[str]:
        return [namespace(lab, name) for name in [*self.host_names, SWITCH]]

    def hosts_file(self) -> str:
        names = [f"{self.address(index)} {name}\n" for index, name in enumerate(self.host_names)]
        if self.rails > 1:
            names += [
                f"{address} {port}\n"
                for index, name in enumerate(self.host_names)
                for address, port in zip(self.addresses(index), self.ports(name), strict=True)
            ]
        return "127.0.0.1 localhost\n" + "".join(names)

    def sysctls(self) -> dict[str, str]:
        found = {
            "net/ipv4/tcp_congestion_control": self.congestion_control,
            # Cached metrics must not help the next run.
            "net/ipv4/tcp_no_metrics_save": "1",
        }
        if self.rails > 1:
            # Drops packets from another rail's address.
            found["net/ipv4/conf/all/rp_filter"] = "1"
        return found

    def switch_script(self) -> tuple[str, str]:
        """Returns input of `ip -batch` and `tc -batch` for the bridges."""
        ip = ["link set lo up"]
        for rail in range(self.rails):
            ip += _bridge(self.on_rail("middle", rail))
        tc = []
        for rack in self.rack_names:
            ip += _bridge(f"br-{rack}")
            ip += [f"link add {rack} type veth peer name up-{rack}"]
            for port, bridge in [(rack, "middle"), (f"up-{rack}", f"br-{rack}")]:
                ip += _port(port, bridge, self.uplink_rate_bits_s)
                tc += [
                    _bucket(
                        port, self.uplink_rate_bits_s, _port_queue_bytes(self.uplink_rate_bits_s)
                    )
                ]
        return _script(ip), _script(tc)

    def host_script(self, lab: str, host: int) -> tuple[str, str]:
        ip, tc = ["link set lo up"], []
        for rail, port in enumerate(self.ports(self.host_names[host])):
            device = rail_name(rail)
            ip += [
                f"link add {device} type veth peer name {port} netns {namespace(lab, SWITCH)}",
                f"address add {self.address(host, rail)}/16 dev {device}",
                _segments(device, self.rate_bits_s),
                f"link set {device} up",
            ]
            tc += [_bucket(device, self.rate_bits_s, _HOST_QUEUE_BYTES)]
        return _script(ip), _script(tc)

    def ports_script(self) -> tuple[str, str]:
        """Returns input of `ip` and `tc` for the hosts' ports, once all hosts exist."""
        ip, tc = [], []
        for host, name in enumerate(self.host_names):
            for rail, port in enumerate(self.ports(name)):
                middle = self.on_rail("middle", rail)
                bridge = f"br-rack{self.rack_of(host)}" if self.racks > 1 else middle
                ip += _port(port, bridge, self.rate_bits_s)
                tc += [_bucket(port, self.rate_bits_s, _port_queue_bytes(self.rate_bits_s))]
        return _script(ip), _script(tc)

    def slowed(self, interface: str, rate_bits_s: int) -> list[str]:
        """Returns the command for a new rate. The bucket keeps its size in bytes."""
        shaped = f"rate {rate_bits_s}bit burst {_bucket_bytes(self.rate_bits_s)} limit {_port_queue_bytes(rate_bits_s)}"
        return ["qdisc", "change", "dev", interface, "root", "tbf", *shaped.split()]


def namespace(lab: str, member: str) -> str:
    return f"{lab}-{member}"


def rail_name(rail: int) -> str:
    return f"eth{rail}"


def _bridge(name: str) -> list[str]:
    return [f"link add {name} type bridge forward_delay 0 mcast_snooping 0", f"link set {name} up"]


def _port(name: str, bridge: str, rate_bits_s: int) -> list[str]:
    return [_segments(name, rate_bits_s), f"link set {name} master {bridge} up"]


def _segments(interface: str, rate_bits_s: int) -> str:
    size_bytes = min(_SEGMENT_BYTES, _bucket_bytes(rate_bits_s))
    return f"link set {interface} gso_max_size {size_bytes}"


def _port_queue_bytes(rate_bits_s: int) -> int:
    return max(_MIN_PORT_QUEUE_BYTES, int(rate_bits_s / 8 * _PORT_QUEUE_S))


def _bucket(interface: str, rate_bits_s: int, queue_bytes: int) -> str:
    burst_bytes = _bucket_bytes(rate_bits_s)
    return f"qdisc add dev {interface} root tbf rate {rate_bits_s}bit burst {burst_bytes} limit {queue_bytes}"


def _bucket_bytes(rate_bits_s: int) -> int:
    return max(2 * _MTU_BYTES, int(rate_bits_s / 8 * _BUCKET_S))


def _script(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
