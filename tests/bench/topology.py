"""Measures the reproductions of papers in docs/dev/reproductions.md: `make topology-report`.

Parts that this machine cannot measure keep their text: labs need root, one part Open MPI.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from lab import Lab, NotAvailable, Plan
from lab.daemons import Hoplite
from lab.lab import RSH

from .topology_lab import Measured, measure

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "dev" / "reproductions.md"
PLOTS: Final = ROOT / "docs" / "dev" / "topology"
_WORKER: Final = Path(__file__).with_name("topology_worker.py")

_HOSTS: Final = 8
_RACKS: Final = 4
_SIZE: Final = 2 << 20
_ROUNDS: Final = 3
_SWAPPED_ORDERS: Final = 10
_MODELS: Final = ("ring", "halving-doubling", "double-binary-tree")
_TIMEOUT_S: Final = 120

# Run by 8 hosts, placed in racks in turn.
_BIASED: Final = ("broadcast", "reduce", "allreduce")
_BIASED_SIZE: Final = 64 << 20
_BIASED_RACKS: Final = (2, 4)

_BLUECONNECT_HOSTS: Final = 16
_BLUECONNECT_SIZE: Final = 16 << 20
_BLUECONNECT_UPLINKS: Final = (0.25, 0.5, 1)
_NIC_BITS_S: Final = 200_000_000
# As in the planner: latency and processor time.
_STEP_S: Final = 2e-4

_PEERS: Final = Path(__file__).with_name("peers")
_MPI_SIZES: Final = (1 << 20, 8 << 20)
_MPI_ROUNDS: Final = 5


class Report:
    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def topology(self, *arguments: str | Path) -> Any:
        command = [self.programs / "hoplite", "topology", *arguments]
        output = subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S).stdout
        return json.loads(output) if output.strip().startswith((b"{", b"[")) else None

    def eflops(self) -> str:
        text = []
        for size, plot in (("256KiB", "eflops-256KiB.svg"), ("256MiB", "eflops-256MiB.svg")):
            rows = [
                [
                    "nodes",
                    "HDRM",
                    "HD",
                    "HD, fat-tree",
                    "HD, shuffled",
                    "HD, fat-tree, shuffled",
                    "ring",
                ]
            ]
            for nodes in (64, 128, 256, 512, 1024):
                shuffled = ("--order", "shuffled:1", "--routing", "ecmp:1")
                cells = [
                    self._simulated("bigraph", nodes, "hdrm", size),
                    self._simulated("bigraph", nodes, "hd", size),
                    self._simulated("fat-tree", nodes, "hd", size),
                    self._simulated("bigraph", nodes, "hd", size, *shuffled),
                    self._simulated("fat-tree", nodes, "hd", size, *shuffled),
                    self._simulated("bigraph", nodes, "ring", size),
                ]
                rows.append([str(nodes), *cells])
            fabric = (
                "--fabric",
                "bigraph",
                "--nodes",
                "1024",
                "--collective",
                "hdrm",
                "--size",
                size,
            )
            self.topology("simulate", *fabric, "--plot", PLOTS / plot)
            text += [
                f"Allreduce of {size}:",
                "",
                *_table(rows),
                "",
                f"![{size} by nodes](topology/{plot})",
                "",
            ]
        return "\n".join(text)

    def _simulated(self, fabric: str, nodes: int, collective: str, size: str, *more: str) -> str:
        arguments = (
            "--fabric",
            fabric,
            "--nodes",
            str(nodes),
            "--collective",
            collective,
            "--size",
            size,
        )
        return _time(float(self.topology("simulate", *arguments, *more, "--json")["seconds"]))

    def blueconnect(self) -> str:
        nic = 3.125e9
        rows = [["uplink, in NICs", "hierarchical", "ring", "cheaper"]]
        for factor in (0.25, 0.5, 1, 4, 16):
            arguments = (
                "--ranks",
                "64",
                "--levels",
                "16x4",
                "--latency",
                "1e-4",
                "--size",
                "64MiB",
                "--json",
            )
            found = self.topology("decompose", *arguments, "--bandwidth", f"{nic},{nic * factor}")
            hierarchical, ring = float(found["total_s"]), float(found["ring_s"])
            cheaper = "hierarchical" if hierarchical < ring else "ring"
            rows.append([f"{factor:g}", _time(hierarchical), _time(ring), cheaper])
        return "\n".join(_table(rows))

    def blueconnect_lab(self) -> str:
        rows = [
            [
                "uplink, in NICs",
                "schedule",
                "model",
                "seconds",
                "objects on all uplinks",
                "on the busiest",
            ]
        ]
        for factor in _BLUECONNECT_UPLINKS:
            bandwidth = f"{_NIC_BITS_S / 8},{_NIC_BITS_S / 8 * factor}"
            network = (
                "--ranks",
                str(_BLUECONNECT_HOSTS),
                "--levels",
                "4x4",
                "--bandwidth",
                bandwidth,
            )
            message = ("--latency", str(_STEP_S), "--size", str(_BLUECONNECT_SIZE))
            model = self.topology("decompose", *network, *message, "--json")
            plan = Plan(
                _BLUECONNECT_HOSTS,
                _NIC_BITS_S,
                racks=4,
                in_turn=True,
                uplink_bits_s=int(_NIC_BITS_S * factor),
            )
            for schedule, expected in (("ring", "ring_s"), ("hierarchical", "total_s")):
                found = measure(
                    self.programs, plan, ["allreduce"], _BLUECONNECT_SIZE, True, schedule
                )
                cells = found["allreduce"].cells()
                rows.append([f"{factor:g}", schedule, f"{float(model[expected]):.2f}", *cells])
        return "\n".join(_table(rows))

    def racks(self) -> str:
        rows = [
            ["racks", "collective", "labels", "seconds", "objects on all uplinks", "on the busiest"]
        ]
        for racks in _BIASED_RACKS:
            plan = Plan(_HOSTS, _NIC_BITS_S, racks=racks, in_turn=True)
            without = measure(self.programs, plan, _BIASED, _BIASED_SIZE, False)
            labelled = measure(self.programs, plan, _BIASED, _BIASED_SIZE, True)
            rows += _biased_rows(racks, without, labelled)
        return "\n".join(_table(rows))

    def cloud_collectives(self) -> str:
        matrix_file = PLOTS / "lab.json"
        with Lab(Plan(hosts=_HOSTS, racks=_RACKS)) as lab:
            with Hoplite(lab, self.programs, memory="64MiB") as hoplite:
                arguments = ("topology", "probe", "--loaded", "--output", str(matrix_file))
                hoplite.client(
                    lab.host("h0"), *arguments, check=True, capture_output=True, timeout=_TIMEOUT_S
                )
            self.topology_plot(matrix_file)
            team = Team(lab)
            try:
                sections = [self._orders(team, matrix_file, model) for model in _MODELS]
            finally:
                team.end()
        matrix_file.unlink()
        return "\n".join(
            _table(
                [
                    ["collective", "best", "as they come", "worst", "worst / best", "Spearman"],
                    *sections,
                ]
            )
        )

    def stock_mpi(self) -> str:
        for program in ("mpicc.openmpi", "mpirun.openmpi", "gcc"):
            if shutil.which(program) is None:
                raise NotAvailable(f"there is no {program}: run `make bench-peers`")
        rows = [["bytes", "as they come", "rankfile", "gain"]]
        with (
            tempfile.TemporaryDirectory() as place,
            Lab(Plan(hosts=_HOSTS, racks=2, in_turn=True)) as lab,
        ):
            directory = Path(place)
            _build_mpi_program(directory)
            matrix = directory / "matrix.json"
            with Hoplite(lab, self.programs, memory="64MiB") as hoplite:
                probe = ("topology", "probe", "--loaded", "--output", str(matrix))
                hoplite.client(
                    lab.host("h0"), *probe, check=True, capture_output=True, timeout=_TIMEOUT_S
                )
            as_they_come = directory / "as-they-come"
            as_they_come.write_text(
                "".join(
                    f"rank {rank}={host} slot=0\n" for rank, host in enumerate(lab.plan.host_names)
                )
            )
            for size in _MPI_SIZES:
                order = (
                    "--matrix",
                    matrix,
                    "--for",
                    "ring",
                    "--size",
                    str(size),
                    "--seconds",
                    "2",
                    "--format",
                    "rankfile",
                )
                ranks = directory / f"ranks-{size}"
                with ranks.open("wb") as out:
                    subprocess.run(
                        [self.programs / "hoplite", "topology", "order", *order],
                        check=True,
                        stdout=out,
                    )
                times: dict[Path, list[float]] = {as_they_come: [], ranks: []}
                for _ in range(_MPI_ROUNDS):
                    for file, known in times.items():
                        known.append(_run_mpi_program(lab, directory, file, size))
                slow, fast = (sorted(known)[_MPI_ROUNDS // 2] for known in times.values())
                rows.append([str(size), *map(_range, times.values()), f"{slow / fast:.2f}"])
        return "\n".join(_table(rows))

    def topology_plot(self, matrix_file: Path) -> None:
        arguments = ("--matrix", matrix_file, "--size", str(_SIZE), "--plot", PLOTS / "lab.svg")
        self.topology("show", *arguments)

    def _orders(self, team: "Team", matrix: Path, model: str) -> list[str]:
        rng = random.Random(1)
        shuffled = [rng.sample(range(_HOSTS), _HOSTS) for _ in range(200)]
        found = self.topology(
            "order", "--matrix", matrix, "--for", model, "--size", str(_SIZE), "--seconds", "2"
        )
        # A lab lists hosts rack by rack; schedulers usually alternate between racks.
        as_they_come = [
            index % _RACKS * (_HOSTS // _RACKS) + index // _RACKS for index in range(_HOSTS)
        ]
        worst = max(shuffled, key=lambda order: self._cost(matrix, model, order))
        orders = [found["order"], as_they_come, worst]
        for _ in range(_SWAPPED_ORDERS):
            order = list(orders[-1] if len(orders) > 3 else found["order"])
            a, b = rng.sample(range(_HOSTS), 2)
            order[a], order[b] = order[b], order[a]
            orders.append(order)
        costs = [self._cost(matrix, model, order) for order in orders]
        times = [team.measure(model, order) for order in orders]
        cells = [_time(seconds) for seconds in times[:3]]
        return [model, *cells, f"{times[2] / times[0]:.2f}", f"{_spearman(costs, times):.2f}"]

    def _cost(self, matrix: Path, model: str, order: list[int]) -> int:
        file = PLOTS / "order.json"
        file.write_text(json.dumps(order))
        arguments = (
            "--matrix",
            matrix,
            "--order",
            file,
            "--model",
            model,
            "--size",
            str(_SIZE),
            "--json",
        )
        cost = self.topology("cost", *arguments)["cost_ps"]
        file.unlink()
        return int(cost)


class Team:
    def __init__(self, lab: Lab) -> None:
        addresses = [host.address for host in lab.hosts]
        self._workers = [
            host.popen(
                [sys.executable, _WORKER, str(index), *addresses],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for index, host in enumerate(lab.hosts)
        ]
        for worker in self._workers:
            assert _pipe(worker.stdout).readline() == "ready\n"

    def measure(self, model: str, order: Sequence[int]) -> float:
        times = []
        for _ in range(_ROUNDS):
            for worker in self._workers:
                stdin = _pipe(worker.stdin)
                stdin.write(
                    json.dumps({"model": model, "order": list(order), "size": _SIZE}) + "\n"
                )
                stdin.flush()
            times.append(max(float(_pipe(worker.stdout).readline()) for worker in self._workers))
        return sorted(times)[_ROUNDS // 2]

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()


def _biased_rows(
    racks: int, without: dict[str, Measured], labelled: dict[str, Measured]
) -> list[list[str]]:
    both = (("without", without), ("with", labelled))
    return [
        [str(racks), name, word, *found[name].cells()] for name in without for word, found in both
    ]


def _build_mpi_program(directory: Path) -> None:
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-o")
    subprocess.run(
        ["mpicc.openmpi", *flags, directory / "mpi_allreduce", _PEERS / "mpi_allreduce.c"],
        check=True,
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", *flags, directory / "idle.so", _PEERS / "idle.c", "-ldl"],
        check=True,
    )


def _run_mpi_program(lab: Lab, directory: Path, rankfile: Path, size: int) -> float:
    """Returns the seconds of an allreduce; an earlier one connects the ranks."""
    parameters = {
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": "eth0",
        "oob_tcp_if_include": "eth0",
        "plm_rsh_agent": str(RSH),
        "plm_rsh_no_tree_spawn": "1",
        "mpi_yield_when_idle": "1",
        "orte_tmpdir_base": str(directory),
    }
    command = [
        *["mpirun.openmpi", "--allow-run-as-root", "-np", str(_HOSTS), "--rankfile", rankfile],
        *[
            "--host",
            ",".join(f"{host}:1" for host in lab.plan.host_names),
            "-x",
            f"LD_PRELOAD={directory / 'idle.so'}",
        ],
        *[word for name, value in parameters.items() for word in ("--mca", name, value)],
        *[directory / "mpi_allreduce", str(size), "2"],
    ]
    options = {
        "check": True,
        "capture_output": True,
        "text": True,
        "timeout": _TIMEOUT_S,
        "cwd": "/",
    }
    found = lab.hosts[0].run(command, env=lab.environment(), **options)
    return float(found.stdout.split()[1])


def _range(times: Sequence[float]) -> str:
    least, median, most = (_time(sorted(times)[index]) for index in (0, len(times) // 2, -1))
    return f"{median} ({least} to {most})"


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks values; equal ones share the mean of their ranks."""
    order = sorted(values)
    first = {value: index for index, value in reversed(list(enumerate(order)))}
    count = {value: order.count(value) for value in first}
    return [first[value] + (count[value] - 1) / 2 for value in values]


def _spearman(ones: Sequence[float], others: Sequence[float]) -> float:
    a, b = _ranks(ones), _ranks(others)
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    product = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    squares = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return product / float(squares) ** 0.5 if squares else 0.0


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _table(rows: list[list[str]]) -> list[str]:
    head, *body = rows
    lines = [" | ".join(row) for row in [head, ["---", *["---:"] * (len(head) - 1)], *body]]
    return [f"| {line} |" for line in lines]


def _replace(page: str, name: str, text: str) -> str:
    pattern = re.compile(f"(<!-- {name}: make topology-report -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no marks for {name}")
    return pattern.sub(lambda match: f"{match[1]}{text.rstrip()}\n{match[2]}", page)


def main() -> None:
    parts = {
        "eflops": Report.eflops,
        "blueconnect": Report.blueconnect,
        "blueconnect-lab": Report.blueconnect_lab,
        "racks": Report.racks,
        "cloud-collectives": Report.cloud_collectives,
        "stock-mpi": Report.stock_mpi,
    }
    parser = argparse.ArgumentParser(
        description="Writes the reproductions in docs/dev/reproductions.md."
    )
    parser.add_argument(
        "--programs",
        type=Path,
        default=ROOT / "target" / "dist",
        help="the directory of the binaries",
    )
    parser.add_argument(
        "--only",
        choices=parts,
        action="append",
        help="write this part, and others only if they are named too",
    )
    arguments = parser.parse_args()
    report = Report(arguments.programs.resolve())
    PLOTS.mkdir(exist_ok=True)
    page = PAGE.read_text()
    for name, part in parts.items():
        if arguments.only and name not in arguments.only:
            continue
        try:
            page = _replace(page, name, part(report))
        except NotAvailable as error:
            print(f"topology-report: {error}; {name} stays as it was", file=sys.stderr)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
