"""Dockerfile, compose.yaml and the Kubernetes manifests: linted, and checked against the program.

No image is built: that needs a registry."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploying import DEPLOY, check_query, parsed

MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
WORKER = {"app": "dray-worker"}
LEEWAY = 15  # seconds that a supervisor adds to --grace


def _documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def _pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for each in _documents():
        if "template" in each["spec"]:
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def _lint(program: str, *words: str) -> None:
    command = [str(Path(sys.executable).parent / program), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_linters_find_nothing_in_the_image_and_in_compose() -> None:
    _lint("hadolint", str(DEPLOY / "Dockerfile"))
    _lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))


def test_manifests_are_what_kubernetes_takes() -> None:
    """All but those of operators' own kinds (KEDA, Prometheus), whose schemas are not published with Kubernetes's."""
    kinds: list[str] = []
    for document in _documents():
        if re.fullmatch(r"v1|(apps|batch|autoscaling)/v\d+", document["apiVersion"]):
            kubernetes_validate.validate(document, "1.33", strict=True)
            kinds.append(document["kind"])
    assert sorted(kinds) == ["Deployment", "Deployment", "HorizontalPodAutoscaler", "Job", "Service"]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_says_what_it_is(path: Any) -> None:
    for each in yaml.safe_load_all(path.read_text()):
        assert re.fullmatch(r"([a-z0-9.]+/)?v\d+(alpha\d+|beta\d+)?", each["apiVersion"])
        assert each["kind"]
        assert re.fullmatch(r"[a-z0-9-]+", each["metadata"]["name"])


def test_pods_are_not_root_and_run_commands_that_there_are() -> None:
    pods = dict(_pods())
    assert set(pods) == {"dray-worker", "dray-tables", "dray-dashboard"}
    for pod in pods.values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            parsed(container["args"])
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert all("secretKeyRef" in each["valueFrom"] for each in container["env"])


def test_a_pod_has_longer_to_end_than_its_jobs() -> None:
    pod = dict(_pods())["dray-worker"]
    given = parsed(pod["containers"][0]["args"])
    assert pod["terminationGracePeriodSeconds"] > given["grace"] + LEEWAY


def test_probes_ask_for_what_is_served() -> None:
    pod = dict(_pods())["dray-worker"]
    (container,) = pod["containers"]
    given = parsed(container["args"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}

    assert given["health_host"] == "0.0.0.0"
    assert {ports[each["port"]] for each in asked.values()} == {given["health_port"]}
    assert {name: each["path"] for name, each in asked.items()} == {
        "startup": "/ready",
        "readiness": "/ready",
        "liveness": "/health",
    }
    (deployment,) = [each for each in _documents() if each["metadata"] == {"name": "dray-worker", "labels": WORKER}]
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(given["health_port"])
    assert annotations["prometheus.io/path"] == "/metrics"


def test_the_dashboard_is_served_where_its_service_points() -> None:
    pod = dict(_pods())["dray-dashboard"]
    (container,) = pod["containers"]
    service = next(each for each in _documents() if each["kind"] == "Service")
    given = parsed(container["args"])
    assert given["port"] == container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"]
    assert {each["name"] for each in container["env"]} == {"DRAY_URL", given["token_env"]}


def test_every_label_that_is_selected_is_given() -> None:
    given = [each["spec"]["template"]["metadata"]["labels"] for each in _documents() if each["kind"] == "Deployment"]
    for each in _documents():
        selector = each["spec"].get("selector", {})
        selected = selector.get("matchLabels", selector)
        assert not selected or selected in given, each["metadata"]["name"]
    names = {each["metadata"]["name"] for each in _documents() if each["kind"] == "Deployment"}
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in _documents() if "scaleTargetRef" in each["spec"]]
    assert len(scaled) == 2
    assert set(scaled) <= names


def test_alerts_and_scalers_ask_for_metrics_that_there_are() -> None:
    queries = [
        rule["expr"]
        for each in _documents()
        if each["kind"] == "PrometheusRule"
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    ]
    keda = next(each for each in _documents() if each["kind"] == "ScaledObject")
    queries += [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    adapter = (DEPLOY / "kubernetes" / "hpa.yaml").read_text()
    queries += [re.sub(r"<<.*?>>", "", each) for each in re.findall(r"metricsQuery: (.+)", adapter)]
    hpa = next(each for each in _documents() if each["kind"] == "HorizontalPodAutoscaler")
    name = hpa["spec"]["metrics"][0]["external"]["metric"]["name"]

    assert len(queries) == 7
    for query in queries:
        check_query(query)
    assert f"name: {{as: {name}}}" in adapter


def test_compose_starts_what_there_is_and_lets_it_end() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    commands = {name: parsed(each["command"]) for name, each in services.items() if "command" in each}
    worker, dashboard = services["worker"], services["dashboard"]

    assert set(commands) == {"tables", "worker", "dashboard"}
    assert int(worker["stop_grace_period"].removesuffix("s")) > commands["worker"]["grace"] + LEEWAY
    assert all("DRAY_URL" in services[name]["environment"] for name in commands)
    assert dashboard["ports"] == [f"127.0.0.1:{commands['dashboard']['port']}:{commands['dashboard']['port']}"]
    for each in services.values():
        assert set(each.get("depends_on", {})) <= set(services)
