from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from harness.report import Report, Sample

if TYPE_CHECKING:
    from typing import Self

SCORE_INTERVAL = 0.25
LINE_INTERVAL = 5.0


class Progress:
    """The steps of a run, with a bar.

        with Progress(args, "accuracy") as progress:
            for step in progress:
                ...
                progress.score(lambda: accuracy(weights))

    The clock starts with the first step.
    """

    def __init__(self, args: argparse.Namespace, score_name: str) -> None:
        self._args, self._score_name = args, score_name
        self._bar = _bar(args)
        self._samples: list[Sample] = []
        self._began: float | None = None
        self._next_line = LINE_INTERVAL
        self.steps = 0
        """Includes the current step."""
        self.elapsed = 0.0
        """Seconds since the first step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __iter__(self) -> Iterator[int]:
        self._began = time.monotonic()
        for step in itertools.count():
            self.steps = step + 1
            yield step
            before, self.elapsed = self.elapsed, self._now()
            self._show(self.elapsed - before)
            if self._is_over():
                return

    def score(self, take: Callable[[], float], *, now: bool = False) -> None:
        elapsed = self._now()
        if not now and self._samples and elapsed < self._samples[-1].seconds + SCORE_INTERVAL:
            return
        score = float(take())
        self._samples.append(Sample(elapsed, self.steps, score))
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._score_name} {score:.3f}", refresh=False)

    def report(self, *, lost: dict[int, str] | None = None, **extra: Any) -> Report:
        """`lost` has the reasons of deaths; `extra` goes into the JSON."""
        return Report(
            example=_program_name(),
            backend=self._args.backend,
            workers=self._args.workers,
            nodes=self._args.nodes,
            seed=self._args.seed,
            steps=self.steps,
            seconds=self.elapsed,
            score_name=self._score_name,
            samples=self._samples,
            lost=lost or {},
            extra=extra,
        )

    def _now(self) -> float:
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _is_over(self) -> bool:
        steps, seconds = self._args.steps, self._args.seconds
        return bool(steps and self.steps >= steps) or bool(seconds and self.elapsed >= seconds)

    def _show(self, seconds: float) -> None:
        if self._bar is not None:
            left = float("inf") if self._bar.total is None else self._bar.total - self._bar.n
            self._bar.update(1 if self._args.steps else min(seconds, left))
        elif self.elapsed >= self._next_line:
            self._next_line = self.elapsed + LINE_INTERVAL
            score = f", {self._score_name} {self._samples[-1].score:.3f}" if self._samples else ""
            print(f"{self.elapsed:.0f} s: {self.steps} steps{score}", file=sys.stderr, flush=True)


def _bar(args: argparse.Namespace) -> Any:
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    if args.steps:
        return tqdm(total=args.steps, unit=" steps", dynamic_ncols=True)
    timed = "{l_bar}{bar}| {n:.1f}/{total:.0f} s{postfix}"
    return tqdm(total=args.seconds, bar_format=timed, dynamic_ncols=True)


def _program_name() -> str:
    return sys.argv[0].rpartition("/")[2].removesuffix(".py")
