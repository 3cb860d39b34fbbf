from __future__ import annotations

import argparse
import subprocess
import sys

from harness.report import Report

BACKENDS = ("hoplite", "ray")


def compare(args: argparse.Namespace, arguments: list[str]) -> list[Report]:
    reports = []
    for workers in args.compare_workers:
        for backend in BACKENDS:
            print(f"{backend}, {workers} workers ...", file=sys.stderr, flush=True)
            reports.append(_run(arguments, backend, workers))
    return reports


def _run(arguments: list[str], backend: str, workers: int) -> Report:
    ours = ["--no-compare", "--json", "--plot=", "--backend", backend, "--workers", str(workers)]
    command = [sys.executable, sys.argv[0], *arguments, *ours]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{backend} with {workers} workers failed; see above")
    return Report.parse(done.stdout)


def table(reports: list[Report]) -> str:
    score = reports[0].score_name
    lines = [
        f"| workers | hoplite, steps/s | ray, steps/s | ratio | {score}, hoplite | {score}, ray |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for ours, rays in zip(reports[::2], reports[1::2], strict=True):
        ratio = ours.steps_per_second / rays.steps_per_second
        speeds = f"{ours.steps_per_second:.2f} | {rays.steps_per_second:.2f} | {ratio:.2f}"
        lines.append(f"| {ours.workers} | {speeds} | {ours.score:.3f} | {rays.score:.3f} |")
    return "\n".join(lines)
