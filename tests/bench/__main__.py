import argparse
import math
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from lab import LabError, parse_rate
from lab import system as lab_system

from . import machine, report
from .errors import BenchError
from .results import Results
from .suite import Settings, Suite, results_for
from .systems import SYSTEMS, Context
from .workloads import WORKLOADS

_ROOT: Final = Path(__file__).resolve().parents[2]
_BUILT: Final = _ROOT / "target" / "bench"
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_LOAD_LIMIT: Final = 0.5

_COLLECTIVES: Final = (
    "round_trip,broadcast,gather,reduce,allreduce,allgather,reduce_scatter,all_to_all"
)
_QUICK: Final[dict[str, str | int | float]] = {
    "systems": "hoplite",
    "workloads": f"{_COLLECTIVES},broadcast_late,reduce_late,allreduce_late",
    "hosts": "4,8",
    "sizes": "1KiB,1MiB,16MiB",
    "intervals": "0.5",
    "rounds": 3,
    "cell_seconds": 8.0,
}
# The paper's sizes, except its largest. An allreduce's schedule depends on the size.
_STANDARD: Final[dict[str, str | int | float]] = {
    "systems": ",".join(SYSTEMS),
    "workloads": ",".join(WORKLOADS),
    "hosts": "4,8,16",
    "sizes": "1KiB,32KiB,1MiB,64MiB",
    "intervals": "0.05,0.2",
    "rounds": 5,
    "cell_seconds": 4.0,
}
_STANDARD_SIZES_OF: Final[dict[str, str]] = {
    "allreduce": "1KiB,32KiB,1MiB,32MiB,64MiB",
    **dict.fromkeys(("allgather", "reduce_scatter", "all_to_all"), "32KiB,1MiB,64MiB"),
}
_FULL: Final[dict[str, str | int | float]] = {**_STANDARD, "cell_seconds": 60.0}


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        arguments.perform(arguments)
    except (BenchError, LabError, ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "bench: interrupted; what was measured is kept, and --continue goes on", file=sys.stderr
        )
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m bench", description="Benchmarks on shaped links. Needs root."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="measure; prints a table, and stores the results")
    much = run.add_mutually_exclusive_group()
    much.add_argument(
        "--quick",
        dest="preset",
        action="store_const",
        const=_QUICK,
        help="Hoplite and the limit, in two minutes",
    )
    much.add_argument(
        "--full",
        dest="preset",
        action="store_const",
        const=_FULL,
        help="more rounds of large objects; takes hours",
    )
    run.add_argument(
        "--continue",
        dest="is_continued",
        action="store_true",
        help="go on with an interrupted run; the same commit only",
    )
    run.add_argument(
        "--systems", metavar="NAME,...", help=f"of {', '.join(SYSTEMS)} (default: all)"
    )
    run.add_argument(
        "--workloads", metavar="NAME,...", help=f"of {', '.join(WORKLOADS)} (default: all)"
    )
    run.add_argument("--hosts", metavar="N,...", help="numbers of hosts (default: 4,8,16)")
    run.add_argument(
        "--sizes",
        metavar="SIZE,...",
        help=f"of the objects (default: {_STANDARD['sizes']}; some workloads have others)",
    )
    run.add_argument(
        "--intervals", metavar="X,...", help="of late arrivals, in units of S/B (default: 0.05,0.2)"
    )
    run.add_argument(
        "--late-from",
        metavar="SIZE",
        help="smallest object for late arrivals (default: the largest)",
    )
    run.add_argument("--rounds", metavar="N", help="of each measurement (default: 5)")
    run.add_argument(
        "--cell-seconds",
        metavar="S",
        help="no more than the least rounds after so long (default: 4)",
    )
    run.add_argument("--rate", default="200mbit", help="of the links (default: 200mbit)")
    run.add_argument(
        "--flow-cap", metavar="RATE", help="of each connection (default: the rate of the links)"
    )
    run.add_argument(
        "--rails",
        default="1",
        metavar="N",
        help="links of each host; other systems and iperf3 use the first (default: 1)",
    )
    run.add_argument("--lanes", metavar="N", help="of Hoplite's stores (default: the stores' own)")
    run.add_argument(
        "--programs",
        type=Path,
        default=_ROOT / "target" / "dist",
        help="where Hoplite's binaries are",
    )
    run.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="default: target/bench/results.json; quick.json with --quick",
    )
    run.set_defaults(perform=_run, preset=_STANDARD)

    write = commands.add_parser("report", help="write Markdown and plots from stored results")
    write.add_argument(
        "results", type=Path, nargs="?", default=_BUILT / "results.json", metavar="FILE"
    )
    write.add_argument(
        "--to", type=Path, default=_ROOT / "docs" / "dev" / "benchmarks.md", metavar="FILE"
    )
    write.add_argument(
        "--page",
        type=Path,
        default=_ROOT / "docs" / "benchmarks.md",
        metavar="FILE",
        help="whose table of medians is written too",
    )
    write.set_defaults(perform=_report)
    return parser


def _run(arguments: argparse.Namespace) -> None:
    lab_system.require()
    given = {name: getattr(arguments, name) for name in arguments.preset}
    chosen = {
        name: value if given[name] is None else given[name]
        for name, value in arguments.preset.items()
    }
    sizes_bytes = _sizes(str(chosen["sizes"]))
    has_own_sizes = arguments.sizes is None and arguments.preset is not _QUICK
    settings = Settings(
        systems=_names(str(chosen["systems"]), SYSTEMS),
        workloads=_names(str(chosen["workloads"]), WORKLOADS),
        hosts=tuple(_hosts(word) for word in str(chosen["hosts"]).split(",")),
        sizes_bytes=sizes_bytes,
        intervals=tuple(_seconds(word) for word in str(chosen["intervals"]).split(",")),
        late_from_bytes=_size(arguments.late_from) if arguments.late_from else max(sizes_bytes),
        rounds=_positive(str(chosen["rounds"])),
        cell_s=_seconds(str(chosen["cell_seconds"])),
        rate_bits_s=parse_rate(arguments.rate),
        flow_cap_bits_s=parse_rate(arguments.flow_cap) if arguments.flow_cap else None,
        rails=_positive(arguments.rails),
        sizes_of={name: _sizes(sizes) for name, sizes in _STANDARD_SIZES_OF.items()}
        if has_own_sizes
        else {},
    )
    path: Path = arguments.results or _BUILT / (
        "quick.json" if arguments.preset is _QUICK else "results.json"
    )
    if machine.load() > _LOAD_LIMIT:
        print(
            f"bench: the machine is or was busy (load {machine.load():.1f}): do not trust the times",
            file=sys.stderr,
        )
    _BUILT.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = results_for(settings, _ROOT, shlex.join(["python3", "-m", "bench", *sys.argv[1:]]))
    if arguments.is_continued and path.exists():
        results = _continued(Results.read(path), results)
    log = path.with_suffix(".log")
    if not results.measurements:
        log.write_text("")
    lanes = ("--lanes", str(_positive(arguments.lanes))) if arguments.lanes else ()
    context = Context(arguments.programs, _BUILT, max(settings.sizes_bytes), log, lanes)
    Suite(settings, context, results, lambda: results.write(path)).run()
    print(report.tables(results))


def _continued(earlier: Results, now: Results) -> Results:
    for what in ("commit", "machine", "rate_bits_s", "flow_cap_bits_s", "rails"):
        if getattr(earlier, what) != getattr(now, what):
            raise BenchError(
                f"the results are of another {what}: {getattr(earlier, what)}, not {getattr(now, what)}"
            )
    earlier.ended = ""
    return earlier


def _report(arguments: argparse.Namespace) -> None:
    results = Results.read(arguments.results)
    arguments.to.parent.mkdir(parents=True, exist_ok=True)
    for path in report.write(results, arguments.to):
        print(path)
    report.summarize(results, arguments.page)
    print(arguments.page)


def _names(text: str, known: Mapping[str, object]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {name!r}; there are {', '.join(known)}")
    return names


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is no positive number")
    return int(text)


def _hosts(text: str) -> int:
    hosts = _positive(text)
    if hosts < 2:
        raise ValueError("there is nothing to measure on one host: at least 2")
    return hosts


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is no positive number")
    return value


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(word) for word in text.split(","))


def _size(text: str) -> int:
    for unit, factor in (("KiB", _KIB), ("MiB", _MIB), ("GiB", _KIB * _MIB), ("B", 1)):
        if text.endswith(unit) and text.removesuffix(unit).isdigit():
            size_bytes = int(text.removesuffix(unit)) * factor
            if size_bytes % 4 == 0 and size_bytes > 0:
                return size_bytes
    raise ValueError(f"{text!r} is no size of whole f32 elements; write it like 32KiB or 1MiB")


def _terminated(_signal: int, _frame: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
