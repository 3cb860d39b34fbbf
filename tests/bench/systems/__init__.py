"""Measured systems.

`tests/bench/README.md` says how to add one.
"""

from typing import Final

from .base import Context, System
from .gloo import Gloo
from .hoplite import HopliteStores
from .mpi import Mpich, OpenMpi, OpenMpiTuned
from .ray import RayStores

SYSTEMS: Final[dict[str, type[System]]] = {
    system.name: system for system in (HopliteStores, Mpich, OpenMpi, OpenMpiTuned, Gloo, RayStores)
}

__all__ = ["SYSTEMS", "Context", "HopliteStores", "System"]
