"""The stored quotas: looking at them, and changing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.records.quotas import QuotaRecord
from metastore.types import Record
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire.quotas import QuotaInfo, QuotaSettings, effective_quota


class StoredQuotas:
    """The quotas in the store. None as a principal stands for the default."""

    def __init__(self, store: MetadataStore, version: ClusterVersion) -> None:
        self._store = store
        self._version = version

    async def get(self, principal: str | None) -> QuotaInfo:
        keys = [_key(principal), paths.DEFAULT_QUOTA]
        records = (await self._store.get_many(keys)).records
        own, default = (_decoded(records[key]) for key in keys)
        return _info(principal, own, default)

    async def change(self, principal: str | None, changes: Mapping[str, Any]) -> QuotaInfo:
        """Replace the amounts that `changes` names; None removes one. Raises UPGRADE_PENDING: services of release 0.2.0
        let everyone use any amount."""
        await require(self._store, self._version, Feature.QUOTAS)
        key = _key(principal)
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(key)
            before = _decoded(stored) or QuotaRecord()
            quota = before.model_copy(update=dict(changes))
            if quota == before:
                return await self.get(principal)
            batch = self._store.batch()
            if stored is None:
                batch.create(key, quota.encode())
            elif quota.empty:
                batch.remove(stored)
            else:
                batch.replace(stored, quota.encode())
            try:
                await self._store.apply(batch)
            except CheckFailed:
                continue
            return await self.get(principal)
        raise patience.over("the quota")

    async def page(self, after: str | None, limit: int) -> tuple[list[QuotaInfo], bool]:
        """The quotas of principals after this one, in the order of the keys, and whether there are more."""
        start = paths.quota_of_principal(after) + "\0" if after is not None else paths.PRINCIPAL_QUOTAS
        default = _decoded(await self._store.get(paths.DEFAULT_QUOTA))
        found = await self._store.range(start, prefix_end(paths.PRINCIPAL_QUOTAS), limit=limit)
        names = [unescape(record.key.removeprefix(paths.PRINCIPAL_QUOTAS)) for record in found.records]
        infos = [_info(name, _decoded(record), default) for name, record in zip(names, found.records, strict=True)]
        return infos, found.more


def _key(principal: str | None) -> str:
    return paths.DEFAULT_QUOTA if principal is None else paths.quota_of_principal(principal)


def _decoded(record: Record | None) -> QuotaRecord | None:
    return QuotaRecord.decode(record.value) if record is not None else None


def _info(principal: str | None, own: QuotaSettings | None, default: QuotaSettings | None) -> QuotaInfo:
    quota = QuotaSettings(**own.amounts()) if own is not None else QuotaSettings()
    return QuotaInfo(
        principal=principal,
        quota=quota,
        effective=effective_quota(own if principal is not None else None, default),
    )
