"""Refusing what needs a later cluster version (see `metastore.versions`)."""

from __future__ import annotations

from metastore.api import MetadataStore
from metastore.incarnation import version_of
from metastore.versions import ClusterVersion, Feature
from metatxn.wire import errors


async def require(store: MetadataStore, version: ClusterVersion, feature: Feature) -> None:
    """Raises UPGRADE_PENDING while processes of an earlier release may serve the cluster, and the store's errors. It is
    read again before that, so that no request is refused once the upgrade is finalized."""
    if not version.allows(feature):
        version.learn(await version_of(store))
    if not version.allows(feature):
        raise errors.UpgradePending(
            f"{feature.value}: needs cluster version {feature.since}, and this cluster has {version.current}"
        )
