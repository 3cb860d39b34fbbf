"""Common code of the examples."""

from harness.crew import Crew, RayCrew, WorkerLost, hoplite_crew, ray_crew
from harness.options import options
from harness.program import main
from harness.progress import Progress
from harness.report import Report

__all__ = [
    "Crew",
    "Progress",
    "RayCrew",
    "Report",
    "WorkerLost",
    "hoplite_crew",
    "main",
    "options",
    "ray_crew",
]
