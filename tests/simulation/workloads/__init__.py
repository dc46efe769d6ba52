"""What clients do in a simulation, one file per workload.

A workload sets up its topics while nothing fails, then runs its clients, each in a process of its own that may be
killed or frozen, and writes down what they ask and are told in the `History`.
"""

from __future__ import annotations

from tests.simulation.workloads.bank import Bank
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.by_key import ByKey
from tests.simulation.workloads.compacting import Compacting
from tests.simulation.workloads.consume import Consume
from tests.simulation.workloads.jobs import Jobs
from tests.simulation.workloads.keeping import Keeping
from tests.simulation.workloads.keyed import Keyed
from tests.simulation.workloads.lasting import Lasting
from tests.simulation.workloads.leading import Leading
from tests.simulation.workloads.library import Library
from tests.simulation.workloads.log import Log
from tests.simulation.workloads.marks import Marks
from tests.simulation.workloads.passing import Passing
from tests.simulation.workloads.transforming import Transforming

WORKLOADS: tuple[type[Workload], ...] = (
    Bank,
    Bank,
    ByKey,
    Compacting,
    Consume,
    Jobs,
    Keeping,
    Keyed,
    Lasting,
    Leading,
    Library,
    Log,
    Marks,
    Passing,
    Transforming,
)
"""Drawn from, so the bank comes twice as often."""
