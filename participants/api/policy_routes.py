"""The policies of topics, namespaces and the cluster."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from metatxn.service.audited import audited
from metatxn.service.http import problems
from metatxn.wire.policies import PolicyInfo, TopicPolicy
from participants.api.rights import (
    NamespacePart,
    TopicPath,
    administering_cluster,
    administering_namespace,
    on_topic,
    seeing_topic,
)
from participants.broker.broker import Broker

_SETTINGS = (*TopicPolicy.model_fields,)


def add_policy_routes(api: APIRouter, broker: Broker) -> None:
    _topic_policy_routes(api, broker)
    _namespace_policy_routes(api, broker)
    _cluster_policy_routes(api, broker)


def _topic_policy_routes(api: APIRouter, broker: Broker) -> None:
    @api.get(
        "/v1/topics/{topic}/policy",
        tags=["policies"],
        responses=problems(404, 422, 503),
        dependencies=[Depends(seeing_topic)],
    )
    async def get_topic_policy(topic: TopicPath) -> PolicyInfo:
        """Get a topic's policy: what was set on the topic, and the values that apply, with where each comes from."""
        return await broker.policies.of_topic(topic)

    @api.patch(
        "/v1/topics/{topic}",
        tags=["policies"],
        responses=problems(404, 409, 422, 503, 504),
        dependencies=[on_topic("admin")],
    )
    @audited("policy.change", body=_SETTINGS)
    async def set_topic_policy(topic: TopicPath, request: TopicPolicy) -> PolicyInfo:
        """Change a topic's policy. Settings that are not named stay as they are, and null removes one."""
        return await broker.policies.change_topic(topic, request.changes())


def _namespace_policy_routes(api: APIRouter, broker: Broker) -> None:
    needed = [Depends(administering_namespace)]
    path = "/v1/policies/namespaces/{tenant}/{namespace}"

    @api.get(path, tags=["policies"], responses=problems(422, 503), dependencies=needed)
    async def get_namespace_policy(tenant: NamespacePart, namespace: NamespacePart) -> PolicyInfo:
        """Get the policy of a namespace, which applies where the policies of its topics say nothing."""
        return await broker.policies.of_namespace(f"{tenant}/{namespace}")

    @api.patch(path, tags=["policies"], responses=problems(409, 422, 503, 504), dependencies=needed)
    @audited("policy.change", body=_SETTINGS)
    async def set_namespace_policy(tenant: NamespacePart, namespace: NamespacePart, request: TopicPolicy) -> PolicyInfo:
        """Change the policy of a namespace. Settings that are not named stay as they are, and null removes one."""
        return await broker.policies.change_namespace(f"{tenant}/{namespace}", request.changes())


def _cluster_policy_routes(api: APIRouter, broker: Broker) -> None:
    needed = [Depends(administering_cluster)]
    path = "/v1/policies/cluster"

    @api.get(path, tags=["policies"], responses=problems(422, 503), dependencies=needed)
    async def get_cluster_policy() -> PolicyInfo:
        """Get the policy of the cluster, which applies where those of topics and namespaces say nothing."""
        return await broker.policies.of_cluster()

    @api.patch(path, tags=["policies"], responses=problems(409, 422, 503, 504), dependencies=needed)
    @audited("policy.change", body=_SETTINGS)
    async def set_cluster_policy(request: TopicPolicy) -> PolicyInfo:
        """Change the policy of the cluster. Settings that are not named stay as they are, and null removes one."""
        return await broker.policies.change_cluster(request.changes())
