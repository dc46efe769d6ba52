"""Guards, bounds and orders, each broken on purpose: the tests that a row names have to catch it."""

from __future__ import annotations

from tests.mutants.guards.backups import BACKUPS
from tests.mutants.guards.batches import BATCHES
from tests.mutants.guards.client import CLIENT
from tests.mutants.guards.clusters import CLUSTERS
from tests.mutants.guards.connector import CONNECTOR
from tests.mutants.guards.console import CONSOLE
from tests.mutants.guards.consumers import CONSUMERS
from tests.mutants.guards.coordinator import COORDINATOR
from tests.mutants.guards.draining import DRAINING
from tests.mutants.guards.dropping import DROPPING
from tests.mutants.guards.entry_groups import ENTRY_GROUPS
from tests.mutants.guards.exclusive import EXCLUSIVE
from tests.mutants.guards.forgetting import FORGETTING
from tests.mutants.guards.gateways import GATEWAYS
from tests.mutants.guards.hidden import HIDDEN
from tests.mutants.guards.ledgers import LEDGERS
from tests.mutants.guards.metastore import METASTORE
from tests.mutants.guards.operating import OPERATING
from tests.mutants.guards.participants import PARTICIPANTS
from tests.mutants.guards.policies import POLICIES
from tests.mutants.guards.projection import PROJECTION
from tests.mutants.guards.pulsar import PULSAR
from tests.mutants.guards.quotas import QUOTAS
from tests.mutants.guards.read_holds import READ_HOLDS
from tests.mutants.guards.reconciling import RECONCILING
from tests.mutants.guards.removal import REMOVALS
from tests.mutants.guards.rewriting import REWRITING
from tests.mutants.guards.schemas import SCHEMAS
from tests.mutants.guards.service import SERVICE
from tests.mutants.guards.stories import STORIES
from tests.mutants.guards.versions import VERSIONS
from tests.mutants.guards.waves import WAVES

GUARDS = (
    *SERVICE,
    *METASTORE,
    *CLUSTERS,
    *COORDINATOR,
    *LEDGERS,
    *RECONCILING,
    *HIDDEN,
    *REWRITING,
    *DROPPING,
    *PARTICIPANTS,
    *DRAINING,
    *EXCLUSIVE,
    *READ_HOLDS,
    *FORGETTING,
    *CONSUMERS,
    *BATCHES,
    *PROJECTION,
    *ENTRY_GROUPS,
    *POLICIES,
    *SCHEMAS,
    *QUOTAS,
    *REMOVALS,
    *STORIES,
    *CLIENT,
    *CONNECTOR,
    *OPERATING,
    *CONSOLE,
    *GATEWAYS,
    *WAVES,
    *PULSAR,
    *VERSIONS,
    *BACKUPS,
)
