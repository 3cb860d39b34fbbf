"""Worker of one rank for Gloo, through torch."""

import datetime
import socket
import sys
import time

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(hours=1)
STRIDE = 61
SPLIT = ("allgather", "reduce_scatter", "all_to_all")


class Worker:
    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks

    def factor(self, rank: int) -> float:
        return float((rank + self.round) % 16 + 1)

    def contents(self, factor: float) -> torch.Tensor:
        return (torch.arange(self.elements, dtype=torch.int32) % 8 + 1).to(torch.float32) * factor

    def prepare(
        self, workload: str, size_bytes: int, round_number: int, steps: int, compute_ns: int
    ) -> None:
        self.workload = workload.removesuffix("_late")
        self.steps, self.compute_s = steps, compute_ns / 1e9
        self.elements = size_bytes // 4 // (self.ranks if self.workload in SPLIT else 1)
        self.round = round_number
        given = self.ranks if self.workload in ("reduce_scatter", "all_to_all") else 1
        taken = self.ranks if self.workload in ("allgather", "all_to_all") else 1
        self.source = torch.cat(
            [self.contents(self.factor(self.rank) * (part + 1)) for part in range(given)]
        )
        self.result = torch.zeros(self.elements * taken)
        parts = self.ranks if self.workload == "gather" and self.rank == 0 else 0
        self.gathered = [torch.zeros(self.elements) for _ in range(parts)]

    def run(self) -> None:
        match self.workload, self.rank:
            case "round_trip", 0:
                dist.send(self.source, 1)
                dist.recv(self.result, 1)
            case "round_trip", 1:
                dist.recv(self.result, 0)
                dist.send(self.source, 0)
            case "broadcast", 0:
                dist.broadcast(self.source, 0)
            case "broadcast", _:
                dist.broadcast(self.result, 0)
            case "gather", _:
                dist.gather(self.source, self.gathered or None, 0)
            case "reduce", _:
                dist.reduce(self.source, 0)
            case "allreduce", _:
                dist.all_reduce(self.source)
            case "allgather", _:
                dist.all_gather_into_tensor(self.result, self.source)
            case "reduce_scatter", _:
                dist.reduce_scatter_tensor(self.result, self.source)
            case "all_to_all", _:
                dist.all_to_all_single(self.result, self.source)
            case "ps_sync", _:
                for step in range(self.steps):
                    self.step(step)

    def step(self, step: int) -> None:
        if self.rank == 0:
            self.result.zero_()
        else:
            parts = 4 + (5 * self.rank + 2 * step) % 9
            time.sleep(self.compute_s * parts / 8)
            self.result.copy_(self.source)
        dist.all_reduce(self.result)

    def is_right(self) -> bool:
        total = sum(self.factor(rank) for rank in range(self.ranks))
        match self.workload, self.rank:
            case "round_trip", 0 | 1:
                return self.has(self.result, self.factor(1 - self.rank))
            case "broadcast", rank if rank > 0:
                return self.has(self.result, self.factor(0))
            case "gather", 0:
                return all(
                    self.has(part, self.factor(rank)) for rank, part in enumerate(self.gathered)
                )
            case ("reduce", 0) | ("allreduce", _):
                return self.has(self.source, total)
            case "ps_sync", _:
                return self.has(self.result, total - self.factor(0))
            case "reduce_scatter", rank:
                return self.has(self.result, total * (rank + 1))
            case ("allgather" | "all_to_all") as workload, rank:
                part = rank + 1 if workload == "all_to_all" else 1
                found = self.result.chunk(self.ranks)
                return all(
                    self.has(found[other], self.factor(other) * part) for other in range(self.ranks)
                )
        return True

    def has(self, found: torch.Tensor, factor: float) -> bool:
        expected = self.contents(factor)
        return torch.equal(found[::STRIDE], expected[::STRIDE]) and torch.equal(
            found[-1:], expected[-1:]
        )

    def perform(self, line: str) -> str:
        match line.split():
            case ["prepare", workload, *numbers]:
                self.prepare(workload, *map(int, numbers))
            case ["run", at]:
                time.sleep(max(0, int(at) - time.monotonic_ns()) / 1e9)
                started = time.monotonic_ns()
                self.run()
                return f"done {started} {time.monotonic_ns()}"
            case ["check"]:
                return "ok" if self.is_right() else "error wrong result"
        return "ok"


def main() -> None:
    path, rank, ranks, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"tcp://{address}", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    worker = Worker(rank, ranks)
    with socket.socket(socket.AF_UNIX) as benchmark:
        benchmark.connect(path)
        benchmark.sendall(f"hello {rank}\n".encode())
        for line in benchmark.makefile():
            benchmark.sendall(f"{worker.perform(line)}\n".encode())


if __name__ == "__main__":
    main()
