"""The stored policies of topics, namespaces and the cluster (see `metatxn.wire.policies`).

Every change replaces a record at the version that was read, so of two changes at the same time both take effect. What
depends on a policy checks the records that it was read from (`InForce.checks`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.records.policies import PolicyRecord
from metastore.txn.records.topics import TopicRecord
from metastore.types import Absent, AtVersion, Check, Record, Version
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire.names import namespace_of
from metatxn.wire.policies import EffectivePolicy, PolicyInfo, PolicySettings, Source, effective
from participants.messages.topics import StoredTopic, Topics, not_found


@dataclass(frozen=True, slots=True)
class InForce:
    """What applies to a topic, as of one revision of the store. While `checks` hold, it still does."""

    topic: TopicRecord
    policy: EffectivePolicy
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class PolicyOfTopic:
    """What applied to a topic when it was looked at, and the versions of the records that said so: of the topic, its
    namespace and the cluster."""

    topic: TopicRecord
    policy: EffectivePolicy
    versions: tuple[Version | None, ...]


class Policies:
    def __init__(self, store: MetadataStore, topics: Topics, version: ClusterVersion | None = None) -> None:
        self._store = store
        self._topics = topics
        self._version = version or ClusterVersion()
        self._recent: dict[str, EffectivePolicy] = {}
        self._looked: dict[str, PolicyOfTopic] = {}
        """What the last look has found, by the key of the topic."""

    async def of_topic(self, name: str) -> PolicyInfo:
        """Raises NOT_FOUND."""
        found = await self.in_force(name)
        if found is None:
            raise not_found(name)
        return _info(found.topic.policy, found.policy)

    async def in_force(self, name: str) -> InForce | None:
        """What applies to a topic, or None if it does not exist. Reads all of its records at one revision."""
        keys = [paths.topic(name), *_above(namespace_of(name))]
        records = (await self._store.get_many(keys)).records
        stored = records[keys[0]]
        topic = TopicRecord.decode(stored.value) if stored is not None else None
        if topic is None or topic.deleted:
            return None
        above = [_decoded(records[key]) for key in keys[1:]]
        checks = tuple(_unchanged(key, records[key]) for key in keys)
        return InForce(topic, _effective(topic.policy, *above), checks)

    async def of_topics(self, names: Sequence[str]) -> dict[str, EffectivePolicy]:
        """What applies to each of the topics that exist; each record is read at a revision of its own, so this is only
        for speed."""
        return {each.topic.name: each.policy async for _, each in self._look_at(names) if not each.topic.deleted}

    async def look(self, names: Sequence[str]) -> AsyncIterator[PolicyOfTopic]:
        """Like `of_topics`, one topic after another, as `MetadataStore.each` reads them. The policies are the `recent`
        ones from then on, and at the end those of other topics are forgotten. A record that is the same as in the last
        look is not decoded again."""
        looked: dict[str, PolicyOfTopic] = {}
        async for key, each in self._look_at(names):
            looked[key] = each
            if not each.topic.deleted:
                self._recent[each.topic.name] = each.policy
                yield each
        self._looked = looked
        for name in sorted(self._recent.keys() - set(names)):
            del self._recent[name]

    async def _look_at(self, names: Sequence[str]) -> AsyncIterator[tuple[str, PolicyOfTopic]]:
        above = {namespace: _above(namespace) for namespace in dict.fromkeys(map(namespace_of, names))}
        stored: dict[str, Record | None] = dict.fromkeys(chain.from_iterable(above.values()))
        without_own: dict[str, EffectivePolicy] = {}
        """What applies to topics without a policy of their own, by namespace."""
        left = iter(names)
        async for key, record in self._store.each(chain(list(stored), map(paths.topic, names))):
            if key in stored:
                stored[key] = record
                continue
            namespace = namespace_of(next(left))
            records_above = [stored[each] for each in above[namespace]]
            if record is None:
                continue
            above_at = tuple(each and each.version for each in records_above)
            looked = self._looked.get(key)
            if looked is None or looked.versions != (record.version, *above_at):
                topic = TopicRecord.decode(record.value)
                policy = without_own.get(namespace) if topic.policy is None else None
                policy = policy or _effective(topic.policy, *map(_decoded, records_above))
                looked = PolicyOfTopic(topic, policy, (record.version, *above_at))
            if looked.topic.policy is None:
                without_own[namespace] = looked.policy
            yield key, looked

    async def recent(self, name: str) -> EffectivePolicy:
        """What applied to a topic when it was last looked at. Only the first request for it reads the store. Raises
        NOT_FOUND."""
        known = self._recent.get(name)
        if known is None:
            known = self._recent[name] = (await self.of_topic(name)).effective
        return known

    async def change_topic(self, name: str, changes: Mapping[str, Any]) -> PolicyInfo:
        """Replace the settings that `changes` names; None removes one. Raises NOT_FOUND and UPGRADE_PENDING."""
        await require(self._store, self._version, Feature.POLICIES)
        patience = Patience()
        while await patience.lasts():
            stored: StoredTopic = await self._topics.get(name)
            policy = _changed(stored.topic.policy, changes)
            if policy != stored.topic.policy:
                topic = stored.topic.model_copy(update={"policy": policy})
                try:
                    await self._store.apply(self._store.batch().replace(stored.record, topic.encode()))
                except CheckFailed:
                    continue
            self._recent.pop(name, None)
            return await self.of_topic(name)
        raise patience.over(f"topic {name}")

    async def of_namespace(self, namespace: str) -> PolicyInfo:
        keys = [paths.namespace_policy(namespace), paths.CLUSTER_POLICY]
        records = (await self._store.get_many(keys)).records
        own, cluster = (_decoded(records[key]) for key in keys)
        return _info(own, _effective(None, own, cluster))

    async def of_cluster(self) -> PolicyInfo:
        own = _decoded(await self._store.get(paths.CLUSTER_POLICY))
        return _info(own, _effective(None, None, own))

    async def change_namespace(self, namespace: str, changes: Mapping[str, Any]) -> PolicyInfo:
        """Like `change_topic`, for a namespace, which need not have topics."""
        await self._change(paths.namespace_policy(namespace), changes)
        return await self.of_namespace(namespace)

    async def change_cluster(self, changes: Mapping[str, Any]) -> PolicyInfo:
        """Like `change_topic`, for the cluster."""
        await self._change(paths.CLUSTER_POLICY, changes)
        return await self.of_cluster()

    async def _change(self, key: str, changes: Mapping[str, Any]) -> None:
        await require(self._store, self._version, Feature.POLICIES)
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(key)
            before = _decoded(stored)
            policy = _changed(before, changes)
            if policy == before:
                return
            batch = self._store.batch()
            if stored is None:
                assert policy is not None, "nothing becomes nothing"
                batch.create(key, policy.encode())
            elif policy is None:
                batch.remove(stored)
            else:
                batch.replace(stored, policy.encode())
            try:
                await self._store.apply(batch)
            except CheckFailed:
                continue
            return
        raise patience.over("the policy")


def _above(namespace: str) -> tuple[str, str]:
    """The keys of the policies that apply where that of a topic says nothing, closest first."""
    return paths.namespace_policy(namespace), paths.CLUSTER_POLICY


def _decoded(record: Record | None) -> PolicyRecord | None:
    return PolicyRecord.decode(record.value) if record is not None else None


def _unchanged(key: str, record: Record | None) -> Check:
    return AtVersion(key, record.version) if record is not None else Absent(key)


def _changed(policy: PolicyRecord | None, changes: Mapping[str, Any]) -> PolicyRecord | None:
    """The policy with the changes, or None if it then says nothing."""
    changed = (policy or PolicyRecord()).model_copy(update=dict(changes))
    return None if changed.empty else changed


def _effective(
    topic: PolicySettings | None, namespace: PolicySettings | None, cluster: PolicySettings | None
) -> EffectivePolicy:
    named: tuple[tuple[Source, PolicySettings | None], ...] = (
        ("topic", topic),
        ("namespace", namespace),
        ("cluster", cluster),
    )
    return effective(*((source, policy) for source, policy in named if policy is not None))


def _info(own: PolicySettings | None, counts: EffectivePolicy) -> PolicyInfo:
    settings = own.settings() if own is not None else {}
    return PolicyInfo(policy=PolicySettings(**settings), effective=counts)
