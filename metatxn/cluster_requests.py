"""What a client asks about the cluster: its processes, rights, quotas, records and version."""

from __future__ import annotations

import json

from metatxn import upgrades
from metatxn.answers import parsed
from metatxn.connection import Connection
from metatxn.http import Call, FixedEndpoint, path_of
from metatxn.paging import Listing, Paged
from metatxn.wire.access import AcceptedToken, AccessInfo
from metatxn.wire.coordinator import (
    CheckedRecords,
    Cluster,
    StoredRecord,
    UpgradeStatus,
)
from metatxn.wire.models import AuditEntry, AuditOutcome, BrokerInfo, BrokerSegment, ServiceStatus, ThroughputAnswer
from metatxn.wire.quotas import QuotaInfo

RECORDS_PATH = "/admin/v2/store/records"
CHECK_PATH = "/admin/v2/store/check"
TOKENS_PATH = "/admin/v2/tokens"
AUDIT_PATH = "/admin/v2/audit-log"


class ClusterRequests:
    """The part of `AsyncClient` for requests about the cluster."""

    _connection: Connection

    async def cluster(self, *, patient: bool = True) -> Cluster:
        """The services with their URLs, and the store's revision. With `patient=False` it fails at once if nothing
        answers."""
        return await self._connection.directory.read(patient=patient)

    async def service_status(self, url: str) -> ServiceStatus:
        """One service of the cluster, which is asked once, and what it sees. Raises `ServiceUnreachable`."""
        call = Call("GET", path_of("status"), for_directory=True)
        return parsed(ServiceStatus, await self._connection.http.request(FixedEndpoint(url), call, patient=False))

    async def throughput(self, url: str) -> ThroughputAnswer:
        """What one service of the cluster has done in the last quarter of an hour. It is asked once. Raises
        `ServiceUnreachable`."""
        call = Call("GET", path_of("throughput"), for_directory=True)
        return parsed(ThroughputAnswer, await self._connection.http.request(FixedEndpoint(url), call, patient=False))

    async def broker(self, broker_id: str) -> BrokerInfo:
        """One broker, and how far its drain is. Raises `NotFound`."""
        return await self._of_broker("GET", broker_id)

    def broker_segments(self, broker_id: str, *, limit: int | None = None) -> Listing[BrokerSegment]:
        """The segments that a broker has, or is about to open, in the order of their names. Requires the right
        `admin`. Raises `NotFound`."""
        connection = self._connection
        path = path_of("brokers", broker_id, "segments")
        return Listing(connection, connection.brokers, path, {"limit": limit}, BrokerSegment)

    async def drain_broker(self, broker_id: str) -> BrokerInfo:
        """Begin to drain a broker: its segments go to the other brokers of its storage while everything is served.
        With local files they stay, and new topics go to other brokers. `broker` shows how far it is. Raises
        `NotFound`."""
        return await self._of_broker("POST", broker_id, "drain")

    async def undrain_broker(self, broker_id: str) -> BrokerInfo:
        """End a drain. Raises `NotFound`."""
        return await self._of_broker("POST", broker_id, "undrain")

    async def _of_broker(self, method: str, broker_id: str, *verb: str) -> BrokerInfo:
        call = Call(method, path_of("brokers", broker_id, *verb))
        return parsed(BrokerInfo, await self._connection.broker(call))

    async def access(self, url: str | None = None) -> AccessInfo:
        """Who this client is to the services, by its token, and what it may do. With `url` that service is asked, once:
        it answers also while the metadata store does not. Raises `Unauthenticated`."""
        call = Call("GET", path_of("access"))
        if url is None:
            return parsed(AccessInfo, await self._connection.coordinator(call))
        return parsed(AccessInfo, await self._connection.http.request(FixedEndpoint(url), call, patient=False))

    def accepted_tokens(self, *, limit: int | None = None) -> Listing[AcceptedToken]:
        """The tokens that the coordinator accepts, and what may be done with each: signed ones by the key, and listed
        ones by principal. Requires the right `admin`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, TOKENS_PATH, {"limit": limit}, AcceptedToken)

    def audit_log(
        self,
        url: str,
        *,
        principal: str | None = None,
        verb: str | None = None,
        text: str | None = None,
        outcome: AuditOutcome | None = None,
        limit: int | None = None,
    ) -> Listing[AuditEntry]:
        """Who changed what at one service, or tried to, latest first: everything, or only what one principal did, by
        one verb (`topic.delete`, or `topic` for all verbs of topics), with a text in the name of the object or in the
        arguments, or with one outcome. Requires the right `admin`. Raises `NotFound` if the service was started
        without a file for its audit log, and `ServiceUnreachable`."""
        wanted = {"principal": principal, "verb": verb, "text": text, "outcome": outcome, "limit": limit}
        return Listing(self._connection, FixedEndpoint(url), AUDIT_PATH, wanted, AuditEntry)

    async def quota(self, principal: str | None) -> QuotaInfo:
        """What a principal may use of the cluster in a second, where that comes from, and what it has used lately; None
        stands for the default. Only administrators see the quotas of others."""
        return parsed(QuotaInfo, await self._connection.coordinator(Call("GET", _quota_path(principal))))

    async def set_quota(self, principal: str | None, /, **amounts: int | None) -> QuotaInfo:
        """Change amounts of a principal's quota, or of the default (None): `requests_per_second`,
        `bytes_in_per_second`, `bytes_out_per_second`. -1 means no limit, and None removes an amount."""
        call = Call("PATCH", _quota_path(principal), content=json.dumps(amounts).encode())  # null removes
        return parsed(QuotaInfo, await self._connection.coordinator(call))

    def quotas(self) -> Paged[QuotaInfo]:
        """The quotas of all principals that have their own."""
        connection = self._connection
        return Listing(connection, connection.coordinators, path_of("quotas", "principals"), {}, QuotaInfo)

    def stored_records(self, prefix: str = "/", *, limit: int | None = None) -> Listing[StoredRecord]:
        """The records of the metadata store whose keys begin with `prefix`. Requires the right `admin`."""
        connection = self._connection
        return Listing(
            connection, connection.coordinators, RECORDS_PATH, {"prefix": prefix, "limit": limit}, StoredRecord
        )

    def check_store(self, *, limit: int | None = None) -> Listing[CheckedRecords]:
        """Compare all records of the metadata store with each other, `limit` with each request, in the order of their
        keys. For records whose keys have the same beginning, an item says how many were examined, how large they are,
        and what is wrong with them; there may be several items for the same beginning. Requires the right `admin`."""
        connection = self._connection
        return Listing(connection, connection.coordinators, CHECK_PATH, {"limit": limit}, CheckedRecords)

    async def upgrade_status(self) -> UpgradeStatus:
        """The cluster version, the release of every process, and what stands in the way of the next version. Raises
        `NotFound` if no coordinator runs a release that knows of cluster versions."""
        return await upgrades.upgrade_status(self._connection)

    async def finalize_upgrade(self, *, accept_absent: bool = False) -> UpgradeStatus:
        """Raise the cluster version to that of the release which the coordinators run: processes of earlier releases
        can no longer serve the cluster. With `accept_absent`, brokers that are not running may own segments.

        Raises `UpgradePending`, whose `members["obstacles"]` say what has to be done first, and `NotFound`.
        """
        return await upgrades.finalize_upgrade(self._connection, accept_absent)


def _quota_path(principal: str | None) -> str:
    return path_of("quotas", "default") if principal is None else path_of("quotas", "principals", principal)
