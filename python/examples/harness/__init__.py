"""The common code of the examples.

* `options`: the command line.
* `cluster`: stores on this machine, or Ray.
* `crew`: the workers, each a process.
* `progress`: the steps and the end of a run.
* `report`: the results of a run as text, JSON and PNG.
* `compare`: runs with both backends, and a table.
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
