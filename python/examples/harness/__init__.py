"""What the examples share, so that each of them shows only what it is about.

* `options`: the command line.
* `cluster`: stores on this machine, or Ray.
* `crew`: the workers, each a process.
* `progress`: when a run is over, and how it went.
* `report`: what a run has found: text, JSON, PNG.
* `compare`: one run after the other with both backends, and a table.
"""

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
