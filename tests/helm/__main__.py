"""`make helm-test`: the chart is linted and rendered, and what comes out is valid by Kubernetes' own schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "metatxn"
PROMETHEUS = CHART.parents[2] / "ops" / "prometheus" / "prometheus.yml"
JOBS = {job["job_name"] for job in yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"]}
STORE = "store=etcd://etcd:2379"
ANONYMOUS = "security.allowAnonymous=true"
VERSIONS = ("1.28", "1.33")
KUBERNETES = "--kube-version=1.33.0"
"""A helm that Go has installed takes an older one for the cluster's."""
OF_OTHERS = ("ServiceMonitor",)
"""Kinds that Kubernetes itself does not know."""
CASES: dict[str, tuple[str, ...]] = {
    "local files": (STORE, ANONYMOUS),
    "an object store": (STORE, ANONYMOUS, "broker.storage=s3://bucket/prefix", "broker.storageSecret=bucket"),
    "everything": (
        *(STORE, "security.tokenSecret=tokens", "security.tlsSecret=tls", "security.peerTokenSecret=peer"),
        *("serviceMonitor.enabled=true", "serviceMonitor.tokenSecret=scrape", "broker.volume.storageClass=fast"),
        *("coordinator.extraArgs={--gc-retention-ms=60000}", "imagePullSecrets[0].name=pull"),
        *("coordinator.nodeSelector.disk=ssd", "broker.podAnnotations.note=yes", "security.ownAuthority=true"),
        *("serviceMonitor.tlsConfig.ca.secret.name=tls", "serviceMonitor.cluster=prod"),
    ),
    "TLS and an object store": (STORE, ANONYMOUS, "security.tlsSecret=tls", "broker.storage=s3://bucket/prefix"),
    "a store with TLS and users": (
        *(f"{STORE}?ca=/etc/metatxn/store/ca.crt&user=u&password_file=/etc/metatxn/store/password", ANONYMOUS),
        "storeSecret=store",
    ),
    "IPv6": (STORE, ANONYMOUS, "ipFamily=IPv6", "broker.storage=s3://bucket/prefix"),
    "gateways": (STORE, ANONYMOUS, "broker.kafkaPort=9092", "broker.pulsarPort=6650"),
    "clients outside": (
        *(STORE, ANONYMOUS, "broker.storage=s3://bucket/prefix", "broker.replicas=3", "broker.kafkaPort=9092"),
        *("external.loadBalancers=true", "external.coordinatorUrl=http://metatxn.example:8470"),
        "external.brokerUrl=http://$(POD_NAME).example:8471",
    ),
    "no network policy": (STORE, ANONYMOUS, "networkPolicy.enabled=false"),
}
REFUSED = {
    "store": (ANONYMOUS,),
    "security": (STORE,),
    "security.ownAuthority": (STORE, ANONYMOUS, "security.ownAuthority=true"),
    "ipFamily": (STORE, ANONYMOUS, "ipFamily=6"),
    "external": (STORE, ANONYMOUS, "external.coordinatorUrl=http://metatxn.example:8470"),
    "external.brokerUrl": (
        *(STORE, ANONYMOUS, "external.coordinatorUrl=http://metatxn.example:8470"),
        "external.brokerUrl=http://brokers.example:8471",
    ),
}
"""Values without which nothing is rendered, and the error says so."""


def main(helm: str) -> None:
    for name, settings in CASES.items():
        given = [KUBERNETES, *(each for setting in settings for each in ("--set", setting))]
        _run(helm, "lint", "--strict", CHART, *given)
        documents = [each for each in yaml.safe_load_all(_run(helm, "template", "r", CHART, *given)) if each]
        for document in documents:
            _validate(name, document)
            _mounts_what_there_is(name, document)
        _has_the_jobs_of_the_rules(name, documents)
        _can_be_reached(name, documents)
        _can_be_reached_from_outside(name, documents)
        sys.stdout.write(f"{name}: {len(documents)} objects\n")
    for name, settings in REFUSED.items():
        given = [KUBERNETES, *(each for setting in settings for each in ("--set", setting))]
        done = subprocess.run([helm, "template", "r", CHART, *given], capture_output=True, text=True)
        assert done.returncode and f"{name}: " in done.stderr, done.stderr
    sys.stdout.write(f"{len(CASES) + len(REFUSED)} passed, 0 failed\n")


def _run(*command: Any) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def _validate(case: str, document: dict[str, Any]) -> None:
    if document["kind"] in OF_OTHERS:
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            raise SystemExit(f"{case}: {document['kind']} {document['metadata']['name']}: {error}") from error


def _mounts_what_there_is(case: str, document: dict[str, Any]) -> None:
    """The schemas do not compare the names of volumes with those of mounts."""
    pods = document.get("spec", {}).get("template", {}).get("spec")
    if pods is None:
        return
    claimed = document["spec"].get("volumeClaimTemplates", [])
    there = {*(each["name"] for each in pods["volumes"]), *(each["metadata"]["name"] for each in claimed)}
    for container in pods["containers"]:
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted == there, f"{case}: {document['kind']} {document['metadata']['name']}: {mounted ^ there}"


def _has_the_jobs_of_the_rules(case: str, documents: list[dict[str, Any]]) -> None:
    """What the ServiceMonitor selects gets the names of jobs that `ops/prometheus` uses."""
    for monitor in (each for each in documents if each["kind"] == "ServiceMonitor"):
        labels = [each["metadata"]["labels"] for each in documents if each["kind"] == "Service"]
        (expression,) = monitor["spec"]["selector"]["matchExpressions"]
        selected = [each for each in labels if each.get(expression["key"]) in expression["values"]]
        jobs = {each.get(monitor["spec"]["jobLabel"]) for each in selected}
        assert jobs == JOBS, f"{case}: the jobs of the ServiceMonitor are {jobs}"


def _can_be_reached(case: str, documents: list[dict[str, Any]]) -> None:
    """The ports on which the containers listen are those of the services that lead to them, and are open."""
    pods = [each["spec"]["template"] for each in documents if each["kind"] in ("Deployment", "StatefulSet")]
    services = [each["spec"] for each in documents if each["kind"] == "Service"]
    listening = set()
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        ports = {(each["name"], each["containerPort"]) for each in container["ports"]}
        listening |= {number for _, number in ports}
        given = {int(arg.partition("=")[2]) for arg in container["args"] if arg.partition("=")[0].endswith("port")}
        assert given == {number for _, number in ports}, f"{case}: the options say {given}"
        leading = [each for each in services if each["selector"].items() <= pod["metadata"]["labels"].items()]
        for service in leading:
            there = {(each["targetPort"], each["port"]) for each in service["ports"]}
            assert there == ports, f"{case}: a service has {there}, and its pods {ports}"
        assert leading, case
    asked = {int(each.partition("=")[2]) for each in CASES[case] if each.partition("=")[0].endswith("Port")}
    assert asked <= listening, f"{case}: nobody listens on {asked - listening}"
    for policy in (each for each in documents if each["kind"] == "NetworkPolicy"):
        (rule,) = policy["spec"]["ingress"]
        assert {each["port"] for each in rule["ports"]} == listening, f"{case}: the policy opens {rule['ports']}"


def _can_be_reached_from_outside(case: str, documents: list[dict[str, Any]]) -> None:
    """Every service announces its address for clients outside, and a load balancer leads to each broker alone."""
    if case != "clients outside":
        return
    pods = {each["metadata"]["name"]: each for each in documents if each["kind"] in ("Deployment", "StatefulSet")}
    for pod in pods.values():
        (container,) = pod["spec"]["template"]["spec"]["containers"]
        (url,) = [each for each in container["args"] if each.startswith("--advertise-url=external=")]
        assert url.partition("=external=")[2] in "\n".join(CASES[case]), f"{case}: {url}"
    balanced = [each["spec"] for each in documents if each.get("spec", {}).get("type") == "LoadBalancer"]
    named = sorted(each["selector"].get("statefulset.kubernetes.io/pod-name", "") for each in balanced)
    (brokers,) = [name for name, each in pods.items() if each["kind"] == "StatefulSet"]
    assert named == ["", *(f"{brokers}-{number}" for number in range(3))], f"{case}: {named}"
    ports = [sorted(each["port"] for each in service["ports"]) for service in balanced]
    assert sorted(ports) == [[8470], *[[8471, 9092]] * 3], f"{case}: {ports}"
    (policy,) = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    assert {"ipBlock": {"cidr": "0.0.0.0/0"}} in policy["ingress"][0]["from"], case


main(sys.argv[1])
