from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SPEED_INTERVAL = 0.2


@dataclass(frozen=True)
class Sample:
    seconds: float
    steps: int
    score: float


@dataclass(frozen=True)
class Report:
    example: str
    backend: str
    workers: int
    nodes: int
    seed: int
    steps: int
    seconds: float
    score_name: str
    """The name of the score, such as "accuracy"."""
    samples: list[Sample]
    lost: dict[int, str]
    """The workers that died, and the reasons."""
    extra: dict[str, Any]

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def score(self) -> float:
        return self.samples[-1].score if self.samples else float("nan")

    def text(self) -> str:
        lines = [
            f"{self.example}, {self.backend}, {self.workers} workers: {self.steps} steps in {self.seconds:.1f} s, "
            f"{self.steps_per_second:.1f} steps/s, {self.score_name} {self.score:.3f}"
        ]
        lines += [
            f"  {name.replace('_', ' ')}: {shown(value)}" for name, value in self.extra.items()
        ]
        lines += [f"  worker {worker} was lost: {how}" for worker, how in self.lost.items()]
        return "\n".join(lines)

    def json(self) -> str:
        fields = dataclasses.asdict(self)
        found = {"steps_per_second": self.steps_per_second, self.score_name: self.score}
        return json.dumps({**fields.pop("extra"), **fields, **found})

    @classmethod
    def parse(cls, line: str) -> Report:
        found = json.loads(line)
        fields = {field.name: found.get(field.name) for field in dataclasses.fields(cls)}
        derived = {"steps_per_second", fields["score_name"]}
        fields["samples"] = [Sample(**sample) for sample in found["samples"]]
        fields["lost"] = {int(worker): how for worker, how in found["lost"].items()}
        fields["extra"] = {
            name: value
            for name, value in found.items()
            if name not in fields and name not in derived
        }
        return cls(**fields)


def shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def plot(reports: Sequence[Report], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (score, speed) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for report in reports:
        label = f"{report.backend}, {report.workers} workers"
        at = [sample.seconds for sample in report.samples]
        score.plot(at, [sample.score for sample in report.samples], label=label)
        speed.plot(*_speeds(report), label=f"{label}: {report.steps_per_second:.1f}/s")
    score.set(xlabel="seconds", ylabel=reports[0].score_name)
    speed.set(xlabel="seconds", ylabel="steps per second", ylim=(0, None))
    for axes in (score, speed):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.suptitle(reports[0].example.replace("_", " "))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _speeds(report: Report) -> tuple[list[float], list[float]]:
    at, speeds = [], []
    before = report.samples[0]
    for after in report.samples[1:]:
        seconds = after.seconds - before.seconds
        if seconds >= SPEED_INTERVAL:
            at.append(before.seconds + seconds / 2)
            speeds.append((after.steps - before.steps) / seconds)
            before = after
    return at, speeds
