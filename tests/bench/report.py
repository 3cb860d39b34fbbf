"""Results as Markdown with tables and plots."""

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from . import targets
from .results import Measurement, Results
from .workloads import WORKLOADS, Workload

# Latency dominates shorter times.
_COMPARED_FROM_S = 0.005
# Shorter rounds are measured too coarsely.
_COSTLY_BYTES = 32 << 20
_SUMMARY = re.compile("(<!-- figures: make bench-report -->\n).*?(<!-- end -->)", re.DOTALL)


def write(results: Results, path: Path) -> list[Path]:
    # A quick run needs no matplotlib.
    try:
        from . import plots
    except ImportError:
        figures: dict[str, Path] = {}
        lacking = ["Without plots: there is no matplotlib.", ""]
    else:
        figures = plots.write(results, path.with_suffix(""))
        lacking = []
    parts = [
        *_head(results),
        *lacking,
        *_standing(results),
        *_figures(figures, path),
        tables(results),
    ]
    path.write_text("\n".join([*parts, *_verdicts(results), *_foot(results)]) + "\n")
    return [path, *figures.values()]


def _rails(results: Results) -> str:
    if results.rails == 1:
        return ""
    return f"Each host has {results.rails} such links. The limit counts all; systems other than Hoplite use the first. "


def _cap(results: Results) -> str:
    if results.flow_cap_bits_s is None:
        return ""
    return f"Each connection of a system gets at most {results.flow_cap_bits_s / 1e6:g} Mbit/s. "


def _head(results: Results) -> list[str]:
    machine = results.machine
    limit = _limits(results)
    lines = [
        "# Benchmarks",
        "",
        f"Made by `{results.command}` in `tests/` on {results.started}, of commit {results.commit}. "
        f"{'' if results.ended else 'The run has not ended. '}Written by `make bench-report`; do not edit.",
        "",
        f"Each host is a network namespace with a link of {results.rate_bits_s / 1e6:g} Mbit/s in each direction "
        f"(`tests/lab`), of which one stream of iperf3 gets {limit}. "
        f"{_rails(results)}{_cap(results)}All hosts share one machine: {machine['processor']}, {machine['memory']}, "
        f"Linux {machine['kernel']}, {machine['distribution']}.",
        "",
        "Times are medians of five rounds, or of three where the limit is more than a second, with the spread from the fastest "
        "to the slowest round behind them; without a spread, there was one round: of a peer that is far behind, or where a round "
        "takes very long. *Limit* is the least time that the links allow at the measured rate, without any latency. A factor is how often the limit fits "
        "into the time. `cpu` marks times during which the processors were busy for 90% or more, so that these "
        "may have been what was measured, and not the links. Of training loops the steps in a second are given, but factors "
        "are of times there too: less is better.",
        "",
        "| system | version | how it is run |",
        "| --- | --- | --- |",
    ]
    for system in results.systems.values():
        lines.append(f"| {system['title']} | {system['version']} | {system['setting']} |")
    lines += ["", "Where a system is run in several ways, the fastest counts.", ""]
    lines += [f"Not measured: {name}: {reason}." for name, reason in results.missing.items()]
    return lines


def _limits(results: Results) -> str:
    found = [limit["payload_bytes_s"] * 8 / 1e6 for limit in results.limits.values()]
    low, high = f"{min(found):.1f}", f"{max(found):.1f}"
    spread = "" if low == high else f" (the best of {len(found)}; the least was {low})"
    return f"{high} Mbit/s of payload{spread}"


def _figures(figures: dict[str, Path], path: Path) -> Iterable[str]:
    for title, figure in figures.items():
        yield f"![{title}]({figure.relative_to(path.parent)})\n"


def _standing(results: Results) -> list[str]:
    verdicts = targets.verdicts(results)
    compared = [verdict for verdict in verdicts if verdict.peer is not None]
    lines = []
    if compared:
        ahead = sum(verdict.is_ahead for verdict in compared)
        lines.append(
            f"Hoplite is the fastest in {ahead} of {len(compared)} measurements that a peer has too."
        )
    for what, met in (
        ("the limit of the links", [verdict.is_near_limit for verdict in verdicts]),
        ("the peers", [verdict.is_near_peers for verdict in verdicts]),
        ("the processor time of a peer", [verdict.is_lean for verdict in verdicts]),
    ):
        asked = [is_met for is_met in met if is_met is not None]
        if asked:
            lines.append(f"Of the targets beside {what} {sum(asked)} of {len(asked)} are met.")
    return [*lines, ""]


def _verdicts(results: Results) -> list[str]:
    verdicts = targets.verdicts(results)
    if not verdicts:
        return []
    lines = [
        "",
        "## Against the limit, the peers and the targets",
        "",
        "Hoplite's time divided by the limit, and the best peer's time divided by Hoplite's: above 1, Hoplite is ahead. "
        f"{targets.DEFINITION}",
        "",
        "| workload | hosts | size | Hoplite | x limit | target | best peer | peer / Hoplite | target |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in verdicts:
        cell = verdict.cell
        time = "failed" if cell.median_s is None else _figure(cell, cell.median_s)
        ratio = f"{cell.median_s / cell.limit_s:.2f}" if cell.median_s else "-"
        peer, lead = "-", "-"
        if verdict.peer is not None and verdict.peer.median_s is not None:
            peer = f"{results.systems[verdict.peer.system]['title']} {_figure(cell, verdict.peer.median_s)}"
            lead = f"{verdict.peer.median_s / cell.median_s:.2f}" if cell.median_s else "-"
        late = f", {seconds(cell.interval_s)} apart" if cell.interval_s else ""
        row = [
            f"{WORKLOADS[cell.workload].title}{late}",
            str(cell.hosts),
            size(cell.size_bytes),
            time,
            ratio,
            _met(verdict.is_near_limit),
            peer,
            f"**{lead}**" if verdict.is_ahead else lead,
            _met(verdict.is_near_peers),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _met(is_met: bool | None) -> str:
    return "" if is_met is None else "met" if is_met else "**missed**"


def tables(results: Results) -> str:
    measured = [workload for workload in WORKLOADS.values() if results.cells(workload.name)]
    return "\n\n".join(_table(results, workload) for workload in measured)


def _table(results: Results, workload: Workload) -> str:
    titles = results.titles()
    late = ["interval"] if workload.is_late else []
    head = ["hosts", "size", *late, "limit", *titles]
    lines = [
        f"## {workload.title} (figure {workload.figure})"
        if workload.figure
        else f"## {workload.title}",
        "",
        workload.definition,
        "",
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
    ]
    for cell in results.cells(workload.name):
        interval = [seconds(cell.interval_s)] if workload.is_late else []
        cells = [_entry(results.best(title, cell)) for title in titles]
        row = [
            str(cell.hosts),
            size(cell.size_bytes),
            *interval,
            _figure(cell, cell.limit_s),
            *_emphasised(results, cell, cells),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def summarize(results: Results, page: Path) -> None:
    text, count = _SUMMARY.subn(
        lambda match: f"{match[1]}{summary(results)}\n{match[2]}", page.read_text()
    )
    if count != 1:
        raise ValueError(f"{page} has no marks for the figures")
    page.write_text(text)


def summary(results: Results) -> str:
    titles = results.titles()
    lines = [
        f"| | hosts | size | floor | {' | '.join(titles)} |",
        f"| --- | ---: | ---: |{' ---: |' * (len(titles) + 1)}",
    ]
    for workload in WORKLOADS.values():
        cells = results.cells(workload.name)
        most = max((cell.hosts for cell in cells), default=0)
        for cell in cells:
            if cell.hosts == most:
                late = f", {seconds(cell.interval_s)} apart" if cell.interval_s else ""
                medians = [_median(results.best(title, cell)) for title in titles]
                entries = " | ".join(_emphasised(results, cell, medians))
                floor = _figure(cell, cell.limit_s)
                lines.append(
                    f"| {workload.title}{late} | {cell.hosts} | {size(cell.size_bytes)} | {floor} | {entries} |"
                )
    return "\n".join(lines)


def _median(cell: Measurement | None) -> str:
    return "-" if cell is None or cell.median_s is None else _figure(cell, cell.median_s)


def _entry(cell: Measurement | None) -> str:
    if cell is None:
        return "-"
    if cell.median_s is None:
        return "timed out" if "within" in (cell.error or "") else "failed"
    parts = [_figure(cell, cell.median_s)]
    if len(cell.seconds) > 1:
        ends = [_figure(cell, min(cell.seconds)), _figure(cell, max(cell.seconds))]
        parts.append(f"({' to '.join(reversed(ends) if WORKLOADS[cell.workload].loop else ends)})")
    if cell.limit_s >= _COMPARED_FROM_S:
        parts.append(f"{cell.median_s / cell.limit_s:.2f}x")
    parts += ["cpu"] if cell.is_bound_by_processor else []
    parts += ["**not over the links**"] if cell.crossed else []
    return " ".join(parts)


def _figure(cell: Measurement, value: float) -> str:
    loop = WORKLOADS[cell.workload].loop
    return seconds(value) if loop is None else f"{loop.steps / value:.2f}/s"


def _emphasised(results: Results, cell: Measurement, entries: list[str]) -> list[str]:
    best = [results.best(title, cell) for title in results.titles()]
    times = [found.median_s if found and found.median_s else float("inf") for found in best]
    if len(times) < 2 or min(times) == float("inf"):
        return entries
    fastest = times.index(min(times))
    return [f"**{entry}**" if index == fastest else entry for index, entry in enumerate(entries)]


def _foot(results: Results) -> list[str]:
    lines = ["", "## Processor time", ""]
    lines += [
        "The part of the processors' time that was used, the median over all rounds of 1 MiB and more:",
        "",
    ]
    for name, system in results.systems.items():
        cells = [cell for cell in results.measurements if cell.system == name and cell.busy]
        busy = [statistics.median(cell.busy) for cell in cells if cell.size_bytes >= 1 << 20]
        if busy:
            lines.append(
                f"* {system['title']} ({name}): {statistics.median(busy):.0%}, at most {max(busy):.0%}"
            )
    lines += _processor_times(results)
    failed = [cell for cell in results.measurements if cell.error or cell.crossed]
    if failed:
        lines += ["", "## What failed", ""]
        for cell in failed:
            what = (
                f"{cell.system}, {cell.workload} of {size(cell.size_bytes)} on {cell.hosts} hosts"
            )
            lines.append(f"* {what}: {cell.error or cell.crossed}")
    proven = sum(cell.crossed == "" for cell in results.measurements)
    lines += [
        "",
        f"In {proven} measurements the counters of the interfaces prove that the bytes crossed the links; objects of "
        "less than 64 KiB are not counted, since Hoplite moves some of these before the clock starts.",
    ]
    return lines


def _processor_times(results: Results) -> list[str]:
    rows = []
    for verdict in targets.verdicts(results):
        cell, ratio = verdict.cell, targets.processor_ratio(results, verdict.cell)
        if (
            ratio is not None
            and cell.size_bytes >= _COSTLY_BYTES
            and WORKLOADS[cell.workload].loop is None
        ):
            what = f"{WORKLOADS[cell.workload].title} | {cell.hosts} | {size(cell.size_bytes)}"
            rows.append(f"| {what} | {ratio:.2f} | {_met(verdict.is_lean)} |")
    if not rows:
        return []
    peer = results.systems[targets.LEAN_PEER]["title"]
    return [
        "",
        f"Hoplite's processor time of a round, over all processes of the machine, divided by {peer}'s. Asked for: at most "
        "1.3 times for an allreduce of 64 MiB on 8 and 16 hosts.",
        "",
        f"| workload | hosts | size | Hoplite / {peer} | target |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]


def seconds(value: float) -> str:
    if value < 0.1:
        return f"{value * 1e3:.3g} ms" if value else "0"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def size(size_bytes: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} B"
