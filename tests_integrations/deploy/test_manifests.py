"""Dockerfile, compose.yaml and the Kubernetes manifests: linted, and checked against the program.

No image is built: that needs a registry."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import kubernetes_validate
import pytest
import yaml
from docker.utils.build import exclude_paths

from dray import App
from dray.app_interface import core_of
from dray.instants import SECOND
from dray.ops.exposition import METRICS
from dray.ops.prometheus import Exporter
from tests.deploying import DEPLOY, check_query, parsed
from tests.web.hands import put_back
from tests_integrations.deploy import promql

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


def test_the_build_sees_the_code_and_nothing_else(tmp_path: Path) -> None:
    """By the rules of Docker's own client."""
    needed = {"requirements.txt", "tasks.py", "shop/__init__.py", "shop/orders/mail.py", "shop/orders/mail.html"}
    secret = {
        *(".env", ".env.local", "shop/.env", "shop/orders/.env", ".git/config", ".git/hooks/update.py", ".netrc"),
        *(".venv/bin/activate", ".venv/lib/python3.13/site-packages/dray.py", "venv/lib/pip.py", "dray.db", "id_rsa"),
        *("shop/__pycache__/mail.cpython-313.pyc", "shop/.ipynb_checkpoints/mail.py", "node_modules/gyp/gyp.py"),
        *("dump.sql", "Dockerfile", "compose.yaml"),
    }
    for name in needed | secret:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    lines = (DEPLOY / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    found = exclude_paths(str(tmp_path), patterns, dockerfile="")
    sent = {name for name in found if (tmp_path / name).is_file()}

    assert sent == needed
    copied = re.findall(r"^COPY (?!--from)(\S+)", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert copied == ["requirements.txt", "."]


def test_manifests_are_what_kubernetes_takes() -> None:
    """Those of operators' own kinds (KEDA, Prometheus) are checked below."""
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


def _scalers() -> dict[str, str]:
    """The queries by which workers are added, by manifest."""
    keda = next(each for each in _documents() if each["kind"] == "ScaledObject")
    (trigger,) = keda["spec"]["triggers"]
    adapter = "".join(re.findall(r"^# ?(.*\n)", (DEPLOY / "kubernetes" / "hpa.yaml").read_text(), re.M))
    (rule,) = yaml.safe_load(adapter[adapter.index("  - seriesQuery") : adapter.index("Paused queues")])
    hpa = next(each for each in _documents() if each["kind"] == "HorizontalPodAutoscaler")
    (metric,) = hpa["spec"]["metrics"]
    assert rule["name"]["as"] == metric["external"]["metric"]["name"]
    assert rule["metricsQuery"].count("{<<.LabelMatchers>>}") == 2
    assert rule["seriesQuery"] in METRICS
    assert metric["external"]["target"]["value"] == trigger["metadata"]["threshold"]
    return {
        "keda.yaml": trigger["metadata"]["query"],
        "hpa.yaml": rule["metricsQuery"].replace("{<<.LabelMatchers>>}", ""),
    }


def test_alerts_and_scalers_ask_for_metrics_that_there_are() -> None:
    alerts = [
        rule["expr"]
        for each in _documents()
        if each["kind"] == "PrometheusRule"
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert len(alerts) == 5
    for query in (*alerts, *_scalers().values()):
        check_query(query)
        assert promql.names(query) <= set(METRICS)


def test_all_other_queries_can_be_parsed() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    page = (DEPLOY.parent / "docs" / "how-to" / "monitor.md").read_text()
    told = "".join(re.findall(r"```promql\n(.+?)```", page, re.DOTALL)).splitlines()
    for query in (*shown, *(line.partition("#")[0] for line in told)):
        assert promql.names(query.replace("$__rate_interval", "5m").replace("$queue", "mail")), query


@pytest.mark.parametrize("manifest", ["keda.yaml", "hpa.yaml"])
def test_workers_are_added_for_jobs_that_wait_and_not_for_those_of_paused_queues(
    made_url: str, manifest: str
) -> None:
    query = _scalers()[manifest]
    with App(made_url) as app:
        for queue in ("held", "mail"):
            app.enqueue("send", queue=queue)
        put_back(app, "jobs", "run_at", 60 * SECOND)
        waits = promql.value(query, _scrape(app))
        app.pause("mail")
        app.pause("held")
        held = promql.value(query, _scrape(app))
        app.resume("mail")
        resumed = promql.value(query, _scrape(app))

    assert 60 <= waits < 1000
    assert held == 0
    assert 60 <= resumed < 1000


def _scrape(app: App) -> str:
    return Exporter(lambda: core_of(app).backend).text()


# What operators define


SCHEMAS = {path.stem: path for path in sorted(Path(__file__).with_name("schemas").glob("*.json"))}


def test_every_manifest_of_an_operator_has_a_schema() -> None:
    theirs = {each["kind"] for each in _documents() if "." in each["apiVersion"]}
    assert theirs == {*SCHEMAS}
    _lint("check-jsonschema", "--check-metaschema", *map(str, SCHEMAS.values()))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_manifest_of_an_operator_is_what_its_schema_says(kind: str, tmp_path: Path) -> None:
    (document,) = [each for each in _documents() if each["kind"] == kind]
    file = tmp_path / "document.json"
    file.write_text(json.dumps(document))
    _lint("check-jsonschema", "--schemafile", str(SCHEMAS[kind]), str(file))

    schema = jsonschema.Draft202012Validator(json.loads(SCHEMAS[kind].read_text()))
    for wrong in _with_one_word_wrong(document):
        assert not schema.is_valid(wrong), wrong


def _with_one_word_wrong(document: dict[str, Any]) -> Iterator[Any]:
    """The document once with each of its fields misspelt; labels and what they are may be any."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, dict) and path[-1:] != ("matchLabels",):
            for name, each in cast("dict[str, Any]", value).items():
                yield (*path, name)
                yield from places(each, (*path, name))
        elif isinstance(value, list):
            for n, each in enumerate(cast("list[Any]", value)):
                yield from places(each, (*path, n))

    for *path, name in places(document):
        wrong = copy.deepcopy(document)
        holder: Any = wrong
        for step in path:
            holder = holder[step]
        holder[f"{name}s"] = holder.pop(name)
        yield wrong


def test_what_is_scraped_is_served_there_and_opened_by_the_same_secret() -> None:
    pods, documents = dict(_pods()), _documents()
    ports = {name: {each["name"] for each in pod["containers"][0].get("ports", ())} for name, pod in pods.items()}
    by_pod = next(each for each in documents if each["kind"] == "PodMonitor")
    by_service = next(each for each in documents if each["kind"] == "ServiceMonitor")
    service = next(each for each in documents if each["kind"] == "Service")
    (health,), (http,) = by_pod["spec"]["podMetricsEndpoints"], by_service["spec"]["endpoints"]
    (token,) = [each for each in pods["dray-dashboard"]["containers"][0]["env"] if each["name"] == "DRAY_WEB_TOKEN"]

    assert health["port"] in ports["dray-worker"]
    assert http["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert by_service["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert http["authorization"]["credentials"] == token["valueFrom"]["secretKeyRef"]


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
