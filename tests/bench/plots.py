"""Plots like the paper's figures 5 to 9."""

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogLocator

from .report import size
from .results import Measurement, Results
from .workloads import WORKLOADS

_COLLECTIVES: Final = [
    "broadcast",
    "gather",
    "reduce",
    "allreduce",
    "allgather",
    "reduce_scatter",
    "all_to_all",
]
_LATE: Final = ["broadcast_late", "reduce_late", "allreduce_late"]
_PARAMETER_SERVER: Final = ["ps_sync", "ps_async"]
_REINFORCEMENT: Final = ["rl_samples", "rl_gradients"]
_MS: Final = 1e3
_STYLE: Final[Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 8,
    "svg.hashsalt": "hoplite",
}
_COLOURS: Final = ["#c0392b", "#2471a3", "#1e8449", "#9a7d0a", "#6c3483", "#34495e"]
_LIMIT: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1}


def write(results: Results, directory: Path) -> dict[str, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    figures = {}
    with mpl.rc_context(_STYLE):
        for name, title, draw in [
            ("round_trip", "Round trip", _round_trip),
            ("collectives", "Collectives", _collectives),
            ("late", "Late arrivals", _late),
            (
                "parameter_server",
                "Parameter server",
                lambda found: _training(found, _PARAMETER_SERVER),
            ),
            (
                "reinforcement",
                "Reinforcement learning",
                lambda found: _training(found, _REINFORCEMENT),
            ),
        ]:
            figure = draw(results)
            if figure is not None:
                figures[title] = directory / f"{name}.svg"
                figure.savefig(figures[title], bbox_inches="tight", metadata={"Date": None})
                plt.close(figure)
    return figures


def _round_trip(results: Results) -> Any:
    cells = results.cells("round_trip")
    if not cells:
        return None
    figure, axes = plt.subplots(figsize=(4, 3))
    _lines(axes, results, cells, lambda cell: cell.size_bytes)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="object size, bytes",
        ylabel="milliseconds",
        title="Round trip",
    )
    axes.legend(frameon=False)
    return figure


def _collectives(results: Results) -> Any:
    workloads = [name for name in _COLLECTIVES if results.cells(name)]
    sizes = sorted({cell.size_bytes for name in workloads for cell in results.cells(name)})
    if not workloads:
        return None
    hosts = sorted({cell.hosts for name in workloads for cell in results.cells(name)})
    shape = len(workloads), len(sizes)
    figure, grid = plt.subplots(
        *shape, figsize=(2.2 * shape[1], 1.9 * shape[0]), squeeze=False, sharex=True
    )
    for row, name in enumerate(workloads):
        for column, size_bytes in enumerate(sizes):
            axes = grid[row][column]
            cells = [cell for cell in results.cells(name) if cell.size_bytes == size_bytes]
            _lines(axes, results, cells, lambda cell: cell.hosts)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
            axes.set_xticks(hosts)
            axes.set_title(f"{WORKLOADS[name].title}, {size(size_bytes)}", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("hosts")
    for line in grid:
        line[0].set_ylabel("milliseconds")
    _legend_below(figure)
    figure.tight_layout()
    return figure


def _late(results: Results) -> Any:
    workloads = [name for name in _LATE if results.cells(name)]
    if not workloads:
        return None
    figure, grid = plt.subplots(
        1, len(workloads), figsize=(3.4 * len(workloads), 2.8), squeeze=False
    )
    for axes, name in zip(grid[0], workloads, strict=True):
        cells = results.cells(name.removesuffix("_late")) + results.cells(name)
        most = max((cell.hosts, cell.size_bytes) for cell in results.cells(name))
        cells = [cell for cell in cells if (cell.hosts, cell.size_bytes) == most]
        _lines(axes, results, cells, lambda cell: cell.interval_s * _MS)
        intervals = [cell.interval_s * _MS for cell in cells]
        arrivals = [(cell.hosts - 1) * cell.interval_s * _MS for cell in cells]
        axes.plot(intervals, arrivals, color="grey", linestyle="--", label="last arrival")
        axes.set(xlabel="interval between arrivals, milliseconds", ylabel="milliseconds")
        axes.set_title(f"{WORKLOADS[name].title}, {size(most[1])}, {most[0]} hosts", fontsize=8)
        axes.set_ylim(bottom=0)
    _legend_below(figure)
    figure.tight_layout()
    return figure


def _training(results: Results, names: list[str]) -> Any:
    workloads = [name for name in names if results.cells(name)]
    if not workloads:
        return None
    figure, grid = plt.subplots(
        1, len(workloads), figsize=(3.4 * len(workloads), 2.8), squeeze=False
    )
    for axes, name in zip(grid[0], workloads, strict=True):
        cells = results.cells(name)
        loop = WORKLOADS[name].loop
        steps = loop.steps if loop else 1
        titles = [
            title for title in results.titles() if any(results.best(title, cell) for cell in cells)
        ]
        width = 0.8 / len(titles)
        for position, title in enumerate(titles):
            places = [
                group + (position - (len(titles) - 1) / 2) * width for group in range(len(cells))
            ]
            found = [results.best(title, cell) for cell in cells]
            rates = [steps / cell.median_s if cell and cell.median_s else 0 for cell in found]
            low = [
                rate - steps / max(cell.seconds) if cell and rate else 0
                for rate, cell in zip(rates, found, strict=True)
            ]
            high = [
                steps / min(cell.seconds) - rate if cell and rate else 0
                for rate, cell in zip(rates, found, strict=True)
            ]
            colour = _COLOURS[results.titles().index(title) % len(_COLOURS)]
            axes.bar(
                places,
                rates,
                width,
                label=title,
                color=colour,
                yerr=[low, high],
                capsize=2,
                ecolor="grey",
            )
        limits = [steps / cell.limit_s for cell in cells]
        axes.hlines(
            limits,
            [group - 0.4 for group in range(len(cells))],
            [group + 0.4 for group in range(len(cells))],
            **_LIMIT,
            label="limit",
        )
        axes.set_xticks(range(len(cells)), [str(cell.hosts) for cell in cells])
        axes.set(xlabel="hosts", ylabel="steps per second")
        axes.set_title(WORKLOADS[name].title, fontsize=8)
    _legend_below(figure)
    figure.tight_layout()
    return figure


def _lines(axes: Any, results: Results, cells: list[Measurement], place: Any) -> None:
    axes.plot(
        [place(cell) for cell in cells],
        [cell.limit_s * _MS for cell in cells],
        **_LIMIT,
        label="limit",
    )
    for title, colour in zip(results.titles(), _COLOURS * 2, strict=False):
        found = [best for cell in cells if (best := results.best(title, cell)) and best.median_s]
        if not found:
            continue
        medians = [(cell.median_s or 0) * _MS for cell in found]
        below = [
            median - min(cell.seconds) * _MS for cell, median in zip(found, medians, strict=True)
        ]
        above = [
            max(cell.seconds) * _MS - median for cell, median in zip(found, medians, strict=True)
        ]
        axes.errorbar(
            [place(cell) for cell in found],
            medians,
            yerr=[below, above],
            label=title,
            color=colour,
            marker="o",
            markersize=3,
            linewidth=1,
            capsize=2,
        )


def _legend_below(figure: Any) -> None:
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    labels, handles = list(entries), list(entries.values())
    figure.legend(
        handles,
        labels,
        loc="lower center",
        ncol=len(labels),
        frameon=False,
        bbox_to_anchor=(0.5, -0.06),
    )
