"""The reproductions in docs/topology.md: `python3 -m bench.topology`, or `make topology-report`.

* EFLOPS, figure 16, and BlueConnect's model: simulated and computed by `hoplite topology`.
* Cloud Collectives: ring, halving-doubling and the double binary tree in several orders of ranks, on a lab of racks. What runs there is
  `topology_worker.py`, which moves the bytes of these collectives over plain sockets and knows nothing of Hoplite.

Without root the part that needs a lab keeps what it said before.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from lab import Lab, NotAvailable, Plan
from lab.daemons import Hoplite

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "topology.md"
PLOTS: Final = ROOT / "docs" / "topology"
_WORKER: Final = Path(__file__).with_name("topology_worker.py")

_HOSTS: Final = 8
_RACKS: Final = 4
_SIZE: Final = 2 << 20
_ROUNDS: Final = 3
_SWAPPED_ORDERS: Final = 10
_MODELS: Final = ("ring", "halving-doubling", "double-binary-tree")
_TIMEOUT_S: Final = 120


class Report:
    """What the programs in a directory say."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs

    def topology(self, *arguments: str | Path) -> Any:
        """What a verb of `hoplite topology` prints as JSON."""
        command = [self.programs / "hoplite", "topology", *arguments]
        output = subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S).stdout
        return json.loads(output) if output.strip().startswith((b"{", b"[")) else None

    def eflops(self) -> str:
        """Figure 16."""
        text = []
        for size, plot in (("256KiB", "eflops-256KiB.svg"), ("256MiB", "eflops-256MiB.svg")):
            rows = [["nodes", "HDRM", "HD", "HD, fat-tree", "HD, shuffled", "HD, fat-tree, shuffled", "ring"]]
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
            fabric = ("--fabric", "bigraph", "--nodes", "1024", "--collective", "hdrm", "--size", size)
            self.topology("simulate", *fabric, "--plot", PLOTS / plot)
            text += [f"Allreduce of {size}:", "", *_table(rows), "", f"![{size} by nodes](topology/{plot})", ""]
        return "\n".join(text)

    def _simulated(self, fabric: str, nodes: int, collective: str, size: str, *more: str) -> str:
        arguments = ("--fabric", fabric, "--nodes", str(nodes), "--collective", collective, "--size", size)
        return _time(float(self.topology("simulate", *arguments, *more, "--json")["seconds"]))

    def blueconnect(self) -> str:
        """The hierarchical decomposition and the ring, for uplinks of several rates."""
        nic = 3.125e9
        rows = [["uplink, in NICs", "hierarchical", "ring", "cheaper"]]
        for factor in (0.25, 0.5, 1, 4, 16):
            arguments = ("--ranks", "64", "--levels", "16x4", "--latency", "1e-4", "--size", "64MiB", "--json")
            found = self.topology("decompose", *arguments, "--bandwidth", f"{nic},{nic * factor}")
            hierarchical, ring = float(found["total_s"]), float(found["ring_s"])
            cheaper = "hierarchical" if hierarchical < ring else "ring"
            rows.append([f"{factor:g}", _time(hierarchical), _time(ring), cheaper])
        return "\n".join(_table(rows))

    def cloud_collectives(self) -> str:
        """Orders of ranks, by model and measured.

        Raises:
            NotAvailable: this user cannot have a lab.
        """
        matrix_file = PLOTS / "lab.json"
        with Lab(Plan(hosts=_HOSTS, racks=_RACKS)) as lab:
            with Hoplite(lab, self.programs, memory="64MiB") as hoplite:
                arguments = ("topology", "probe", "--loaded", "--output", str(matrix_file))
                hoplite.client(lab.host("h0"), *arguments, check=True, capture_output=True, timeout=_TIMEOUT_S)
            self.topology_plot(matrix_file)
            team = Team(lab)
            try:
                sections = [self._orders(team, matrix_file, model) for model in _MODELS]
            finally:
                team.end()
        matrix_file.unlink()
        return "\n".join(_table([["collective", "best", "as they come", "worst", "worst / best", "Spearman"], *sections]))

    def topology_plot(self, matrix_file: Path) -> None:
        """Draws the matrix of the lab."""
        arguments = ("--matrix", matrix_file, "--size", str(_SIZE), "--plot", PLOTS / "lab.svg")
        self.topology("show", *arguments)

    def _orders(self, team: "Team", matrix: Path, model: str) -> list[str]:
        """Measures a collective in the order that the solver finds, in some that are ever further from it, alternating, and the worst."""
        rng = random.Random(1)
        shuffled = [rng.sample(range(_HOSTS), _HOSTS) for _ in range(200)]
        found = self.topology("order", "--matrix", matrix, "--for", model, "--size", str(_SIZE), "--seconds", "2")
        # Hosts of racks come one after the other in a lab. As they come from a scheduler, they alternate.
        as_they_come = [index % _RACKS * (_HOSTS // _RACKS) + index // _RACKS for index in range(_HOSTS)]
        worst = max(shuffled, key=lambda order: self._cost(matrix, model, order))
        # Their costs are spread between that of the best and those of shuffled orders.
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
        arguments = ("--matrix", matrix, "--order", file, "--model", model, "--size", str(_SIZE), "--json")
        cost = self.topology("cost", *arguments)["cost_ps"]
        file.unlink()
        return int(cost)


class Team:
    """A worker on each host of a lab."""

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
        """The median of the times that the slowest rank took, in seconds."""
        times = []
        for _ in range(_ROUNDS):
            for worker in self._workers:
                stdin = _pipe(worker.stdin)
                stdin.write(json.dumps({"model": model, "order": list(order), "size": _SIZE}) + "\n")
                stdin.flush()
            times.append(max(float(_pipe(worker.stdout).readline()) for worker in self._workers))
        return sorted(times)[_ROUNDS // 2]

    def end(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            worker.kill()
            worker.communicate()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal ones share the mean of theirs."""
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
    """Puts `text` between the marks of a part of the page."""
    pattern = re.compile(f"(<!-- {name}: make topology-report -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no marks for {name}")
    return pattern.sub(lambda match: f"{match[1]}{text.rstrip()}\n{match[2]}", page)


def main() -> None:
    """Writes the parts of docs/topology.md."""
    parser = argparse.ArgumentParser(description="Writes the reproductions in docs/topology.md.")
    parser.add_argument("--programs", type=Path, default=ROOT / "target" / "release", help="the directory of the binaries")
    report = Report(parser.parse_args().programs.resolve())
    PLOTS.mkdir(exist_ok=True)
    page = PAGE.read_text()
    page = _replace(page, "eflops", report.eflops())
    page = _replace(page, "blueconnect", report.blueconnect())
    try:
        page = _replace(page, "cloud-collectives", report.cloud_collectives())
    except NotAvailable as error:
        print(f"topology-report: {error}; the orders of Cloud Collectives stay as they were", file=sys.stderr)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
