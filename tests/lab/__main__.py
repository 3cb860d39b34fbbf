import argparse
import json
import signal
import subprocess
import sys
from typing import NoReturn

from . import registry, system
from .errors import LabError
from .lab import Lab, watch
from .plan import Plan, parse_rate


def main() -> int:
    arguments = _parser().parse_args()
    try:
        code = arguments.perform(arguments)
        return code if isinstance(code, int) else 0
    except (LabError, ValueError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m lab",
        description="Hosts on one machine, with shaped links that can be cut. Needs root.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser(
        "up", help="build a lab; it lives until this is interrupted, or as long as COMMAND runs"
    )
    up.add_argument("--hosts", type=int, default=4, metavar="N", help="how many hosts (default: 4)")
    up.add_argument(
        "--rate", default="200mbit", help="of each host's link, each way (default: 200mbit)"
    )
    up.add_argument(
        "--rails", type=int, default=1, metavar="N", help="links of each host (default: 1)"
    )
    up.add_argument(
        "--racks",
        type=int,
        default=1,
        metavar="N",
        help="into how many racks they are divided (default: 1)",
    )
    up.add_argument(
        "--uplink", metavar="RATE", help="of the link of each rack to the others (default: RATE)"
    )
    up.add_argument(
        "--congestion-control", default="cubic", metavar="NAME", help="of TCP (default: cubic)"
    )
    up.add_argument(
        "--flow-cap", metavar="RATE", help="of each TCP connection (default: that of the links)"
    )
    up.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a command to run, outside of the lab",
    )
    up.set_defaults(perform=_up)

    run = commands.add_parser("run", help="run a command on a host")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    run.set_defaults(perform=_run)

    for name, text in [
        ("cut", "cut a host, a rack or a rail such as h1.eth0: packets vanish, nobody is told"),
        ("repair", "repair links that were cut"),
        ("kill", "cut the link of a host, then kill its processes"),
    ]:
        command = commands.add_parser(name, help=text)
        command.add_argument("names", nargs="+", metavar="HOST" if name == "kill" else "LINK")
        command.set_defaults(perform=_disturb, method=name)

    traffic = commands.add_parser("traffic", help="bytes received and sent over each link so far")
    traffic.add_argument("--json", action="store_true", help="print JSON")
    traffic.set_defaults(perform=_traffic)
    for command in (run, traffic, *(commands.choices[name] for name in ("cut", "repair", "kill"))):
        command.add_argument("--lab", metavar="NAME", help="which lab, if there are several")

    commands.add_parser("ls", help="list the labs of this machine").set_defaults(perform=_ls)
    commands.add_parser(
        "clean", help="remove what labs left over whose owner is gone"
    ).set_defaults(perform=_clean)
    watcher = commands.add_parser("watch")
    watcher.add_argument("name")
    watcher.set_defaults(perform=lambda arguments: watch(arguments.name, sys.stdin.buffer))
    return parser


def _up(arguments: argparse.Namespace) -> int:
    plan = Plan(
        hosts=arguments.hosts,
        rate_bits_s=parse_rate(arguments.rate),
        racks=arguments.racks,
        rails=arguments.rails,
        uplink_bits_s=parse_rate(arguments.uplink) if arguments.uplink else None,
        congestion_control=arguments.congestion_control,
        flow_cap_bits_s=parse_rate(arguments.flow_cap) if arguments.flow_cap else None,
    )
    command = [word for index, word in enumerate(arguments.command) if (index, word) != (0, "--")]
    signal.signal(signal.SIGTERM, _terminated)
    with Lab(plan) as lab:
        if lab.allowed_congestion_control:
            print(
                f"lab: namespaces may use {plan.congestion_control} until the last lab ends",
                file=sys.stderr,
            )
        if command:
            return subprocess.run(command, env=lab.environment(), check=False).returncode
        print(f"{lab.name} is up: {_summary(plan)}. Interrupt this to take it down.", flush=True)
        signal.pause()
    return 0


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        raise LabError("run what?")
    lab = Lab.existing(arguments.lab)
    return (
        lab.host(arguments.host)
        .run(arguments.command, env=lab.environment(), check=False, timeout=None)
        .returncode
    )


def _disturb(arguments: argparse.Namespace) -> None:
    lab = Lab.existing(arguments.lab)
    for name in arguments.names:
        getattr(lab, arguments.method)(name)


def _traffic(arguments: argparse.Namespace) -> None:
    traffic = Lab.existing(arguments.lab).traffic()
    if arguments.json:
        print(json.dumps({link: vars(count) for link, count in traffic.items()}))
        return
    print(f"{'LINK':<8}{'RECEIVED':>16}{'SENT':>16}")
    for link, count in traffic.items():
        print(f"{link:<8}{count.received_bytes:>16}{count.sent_bytes:>16}")


def _ls(_: argparse.Namespace) -> None:
    for name in registry.names():
        print(name, "" if registry.is_owned(name) else "(its owner is gone)")


def _clean(_: argparse.Namespace) -> None:
    system.require()
    with registry.locked():
        for name in registry.remove_leftovers():
            print(f"removed {name}")


def _summary(plan: Plan) -> str:
    racks = f" in {plan.racks} racks" if plan.racks > 1 else ""
    cap = f", {plan.flow_cap_bits_s / 1e6:g} Mbit/s per connection" if plan.flow_cap_bits_s else ""
    rails = f"{plan.rails} rails of " if plan.rails > 1 else ""
    return f"{plan.host_names[0]} to {plan.host_names[-1]}{racks}, {rails}{plan.rate_bits_s / 1e6:g} Mbit/s each way{cap}"


def _terminated(_signal: int, _frame: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
