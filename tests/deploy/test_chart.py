"""The Helm chart: rendered by Helm with every switch turned, held to Kubernetes' schemas and to what the code reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from shoal.configuration import load
from shoal_coordinator.settings import Settings
from shoal_edge_client.settings import EdgeSettings

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "shoal"
Values = dict[str, Any]
Objects = dict[tuple[str, str], Any]
"""Return the rendered objects, by kind and name."""

SECRETS: Values = {"database": {"secret": "db"}, "operatorToken": {"secret": "op"}, "blobs": {"secret": "s3"}}
BUCKET: Values = {"blobs": "s3://shoal/a?endpoint=https://s3.example.org"}
INGRESS: Values = {"enabled": True, "className": "nginx", "tlsSecret": "cert", "annotations": {"a.example.org/b": "0"}}
EDGE: Values = {"enabled": True, "token": {"secret": "tok"}}
SCALED: Values = {"autoscaling": {"enabled": True}}
TOKEN: Values = {"token": {"secret": "viewer"}}
WATCHED: Values = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "labels": {"release": "p"}}
PODS: Values = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}
NOTHING_SAID: Values = {"requests": None, "limits": None}

SWITCHES: dict[str, Values] = {
    "as it stands": {},
    "several coordinators": {"coordinator": {"replicas": 3, "settings": BUCKET, **SECRETS}},
    "settings alone": {"coordinator": {"settings": {"leaseS": 7}}},
    "a secret alone": {"coordinator": {"database": {"secret": "db"}}},
    "open metrics": {"coordinator": {"settings": {"anonymousRead": True}}},
    "an ingress": {"coordinator": {"ingress": INGRESS}},
    "an ingress without TLS": {"coordinator": {"ingress": {"enabled": True}}},
    "another service": {"coordinator": {"service": {"type": "NodePort", "port": 80}}},
    "another storage": {"coordinator": {"storage": {"className": "fast", "size": "1Ti"}}},
    "no resources": {"coordinator": {"resources": NOTHING_SAID}, "edgeClients": EDGE | {"resources": NOTHING_SAID}},
    "edge clients": {"edgeClients": EDGE},
    "edge clients elsewhere": {"edgeClients": EDGE | {"url": "https://far.example.org", "settings": {"threads": 2}}},
    "edge clients by load": {"edgeClients": EDGE | SCALED | {"storage": {"className": "fast"}}},
    "edge clients with GPUs": {"edgeClients": EDGE | {"gpus": 2}},
    "GPUs and no limits": {"edgeClients": EDGE | {"gpus": 2, "resources": NOTHING_SAID}},
    "edge clients alone": {"coordinator": {"enabled": False}, "edgeClients": EDGE | {"url": "https://far.example.org"}},
    "no peers": {"edgeClients": EDGE | {"peers": {"enabled": False}}},
    "pods": {"imagePullSecrets": [{"name": "registry"}], "coordinator": PODS, "edgeClients": EDGE | PODS | {"gpus": 1}},
    "anywhere": {"coordinator": {"spreadOver": [], "maxUnavailable": None}, "edgeClients": EDGE | {"spreadOver": []}},
    "policies": {
        "networkPolicy": {
            "enabled": True,
            "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "egress": [{"ports": [{"port": 443}]}],
        },
        "edgeClients": EDGE,
    },
    "policies for edge clients alone": {
        "networkPolicy": {"enabled": True},
        "coordinator": {"enabled": False},
        "edgeClients": EDGE | {"url": "https://far.example.org:8443/shoal"},
    },
    "watched": {"monitoring": WATCHED | TOKEN},
}


class Helm:
    """Helm, and what knows Kubernetes' schemas; both by their commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._helm, self._validate = (shutil.which(name, path=tools) for name in ("helm", "kubernetes-validate"))
        if self._helm is None or self._validate is None:
            pytest.skip("needs helm and kubernetes-validate")

    def _run(self, tool: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        assert tool is not None
        return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def asked(self, command: str, values: Values, name: str = "t") -> subprocess.CompletedProcess[str]:
        """`helm template` or `helm install --dry-run`, with these values in a file."""
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return self._run(self._helm, *command.split(), name, str(CHART), "--values", str(file))

    def lint(self) -> subprocess.CompletedProcess[str]:
        return self._run(self._helm, "lint", "--strict", str(CHART))

    def fits(self, rendered: str) -> subprocess.CompletedProcess[str]:
        file = self._folder / "rendered.yaml"
        file.write_text(rendered)
        return self._run(self._validate, "--strict", str(file))

    def known(self, rendered: str) -> str:
        """Without the kinds of Prometheus' operator, of which Kubernetes has no schema."""
        found = [one for one in yaml.safe_load_all(rendered) if one]
        return yaml.safe_dump_all(one for one in found if "monitoring.coreos.com" not in one["apiVersion"])

    def objects(self, values: Values, name: str = "t") -> Objects:
        made = self.asked("template", values, name)
        assert made.returncode == 0, made.stderr
        found = [one for one in yaml.safe_load_all(made.stdout) if one]
        return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def pod_of(stateful: Any) -> Any:
    return stateful["spec"]["template"]["spec"]


def variables(stateful: Any) -> dict[str, str]:
    (container,) = pod_of(stateful)["containers"]
    return {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}


# Its form


def test_helm_finds_nothing(helm: Helm) -> None:
    found = helm.lint()
    assert (found.returncode, "0 chart(s) failed" in found.stdout) == (0, True), found.stdout


@pytest.mark.parametrize("values", SWITCHES.values(), ids=list(SWITCHES))
def test_every_switch_makes_what_kubernetes_takes(helm: Helm, values: Values) -> None:
    made = helm.asked("template", values)
    assert made.returncode == 0, made.stderr
    found = helm.fits(helm.known(made.stdout))
    assert found.returncode == 0, found.stdout + found.stderr
    for stateful in (one for one in yaml.safe_load_all(made.stdout) if one and one["kind"] == "StatefulSet"):
        (container,) = pod_of(stateful)["containers"]
        assert None not in container.values(), "a key that says nothing"


def test_what_kubernetes_does_not_take_would_be_seen(helm: Helm) -> None:
    made = helm.asked("template", {}).stdout
    wrong = helm.fits(made.replace("serviceName:", "serviceNam:"))
    assert (wrong.returncode, "serviceNam" in wrong.stdout + wrong.stderr) == (1, True)


def test_what_cannot_work_is_refused(helm: Helm) -> None:
    for values, why in (
        ({"coordinator": {"replicas": 2}}, "several coordinators need coordinator.database.secret"),
        ({"coordinator": {"replicas": 2, **SECRETS}}, "coordinator.settings.blobs"),
        ({"edgeClients": {"enabled": True}}, "edgeClients.token.secret"),
        ({"coordinator": {"enabled": False}, "edgeClients": EDGE}, "edgeClients.url"),
        ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "monitoring.token.secret"),
    ):
        found = helm.asked("template", values)
        assert (found.returncode, why in found.stderr) == (1, True), found.stderr


# Settings of the processes


def differing(model: type[BaseModel]) -> Values:
    """A value that is not the default for each setting that may stand among `settings`."""
    other: dict[str, Any] = {"tags": ["phone", "red"], "hours": ["22:00-06:00"], "jobs": ["a", "b"]}
    other |= {"options": {"lr": 0.1, "name": "<x>"}, "log_level": "debug", "log_form": "json", "trainer": "thread"}
    other |= {"peer_url": "http://h:1", "send_logs": "off", "anonymous_read": True, "body_bytes_max": 8 * 2**30}
    ours = {"hosts", "host", "port", "data", "tls_cert", "tls_key", "url", "learner", "state_dir", "ca_file", "name"}
    ours |= {"tls_client_ca", "client_cert", "client_key"}  # files, as those before
    values = {}
    for key, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if key in other:
            values[key] = other[key]
        elif key not in ours and not isinstance(default, SecretStr):
            is_text = isinstance(default, str)
            values[key] = "word" if is_text else not default if isinstance(default, bool) else default + 1
    return values


def test_a_coordinator_knows_the_names_that_the_chart_gives_it(helm: Helm) -> None:
    values = {"settings": {"hosts": ["a.example"]}, "ingress": {"enabled": True, "host": "b.example"}}
    objects = helm.objects({"coordinator": values})
    hosts = json.loads(variables(objects["StatefulSet", "t-coordinator"])["SHOAL_COORDINATOR__HOSTS"])
    service = "t-coordinator"
    assert {service, "a.example", "b.example"} <= set(hosts)
    assert [host for host in hosts if host.startswith(f"{service}.") and host.endswith(".svc")]


def camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


@pytest.mark.parametrize("spelt", [str, camel], ids=["as_in_the_docs", "asInCharts"])
@pytest.mark.parametrize(
    ("part", "section", "model"),
    [("coordinator", "coordinator", Settings), ("edgeClients", "edge", EdgeSettings)],
)
def test_settings_are_read_as_they_were_said(
    helm: Helm,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    section: str,
    model: type[BaseModel],
    spelt: Callable[[str], str],
) -> None:
    """Large numbers too, which Helm would write as 8.6e+09, and lists and maps."""
    wanted = differing(model)
    assert len(wanted) > 15
    base = EDGE if part == "edgeClients" else {}
    objects = helm.objects({part: base | {"settings": {spelt(key): value for key, value in wanted.items()}}})
    name = "t-coordinator" if part == "coordinator" else "t-edge-client"
    for variable, value in variables(objects["StatefulSet", name]).items():
        if not variable.endswith("_FILE"):  # its file is in the container
            monkeypatch.setenv(variable, value)
    read = load(model, section)
    assert {key: getattr(read, key) for key in wanted} == wanted


def test_every_file_that_is_named_is_mounted(helm: Helm) -> None:
    objects = helm.objects({"coordinator": {"settings": BUCKET, **SECRETS}, "edgeClients": EDGE})
    keys = {"/run/secrets/database": "db", "/run/secrets/operator": "op", "/run/secrets/blobs": "s3"}
    for name, secrets, files in (
        ("t-coordinator", keys, 4),
        ("t-edge-client", {"/run/secrets/node": "tok"}, 1),
    ):
        stateful = objects["StatefulSet", name]
        named = {Path(value) for key, value in variables(stateful).items() if key.endswith("_FILE")}
        pod = pod_of(stateful)
        volumes = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
        mounts = {one["mountPath"]: volumes.get(one["name"]) for one in pod["containers"][0]["volumeMounts"]}
        assert len(named) == files
        assert {str(path.parent) for path in named} == set(secrets)
        assert {path: secret for path, secret in mounts.items() if secret} == secrets
        assert {"/data", "/tmp"} <= set(mounts)
        assert [claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]] == ["data"]


# How its parts find each other


def test_services_and_ingress_lead_to_the_coordinators(helm: Helm) -> None:
    values = {"coordinator": {"service": {"port": 80}, "ingress": INGRESS}, "edgeClients": EDGE}
    objects = helm.objects(values)
    service, coordinators = objects["Service", "t-coordinator"], objects["StatefulSet", "t-coordinator"]
    edge = objects["StatefulSet", "t-edge-client"]
    asked = service["spec"]["selector"].items()
    assert asked <= coordinators["spec"]["template"]["metadata"]["labels"].items()
    assert not asked <= edge["spec"]["template"]["metadata"]["labels"].items()
    for stateful in (coordinators, edge):
        chosen = stateful["spec"]["selector"]["matchLabels"].items()
        assert chosen <= stateful["spec"]["template"]["metadata"]["labels"].items()
    assert coordinators["spec"]["serviceName"] == "t-coordinator"
    assert variables(edge)["SHOAL_EDGE__URL"] == "http://t-coordinator:80"
    rules = objects["Ingress", "t-coordinator"]["spec"]["rules"]
    assert rules[0]["http"]["paths"][0]["backend"]["service"] == {"name": "t-coordinator", "port": {"name": "http"}}


def test_who_is_scaled_by_load_has_no_number_of_its_own(helm: Helm) -> None:
    objects = helm.objects({"edgeClients": EDGE | SCALED})
    assert "replicas" not in objects["StatefulSet", "t-edge-client"]["spec"]
    scaler = objects["HorizontalPodAutoscaler", "t-edge-client"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "t-edge-client"
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 30)
    assert helm.objects({"edgeClients": EDGE})["StatefulSet", "t-edge-client"]["spec"]["replicas"] == 3


def test_a_long_name_of_a_release_is_cut(helm: Helm) -> None:
    """Helm allows 53 characters; a StatefulSet with more than 52 makes no pods."""
    release = "a-release-with-a-name-that-is-as-long-as-helm-allows1"
    assert len(release) == 53
    objects = helm.objects({"edgeClients": EDGE}, release)
    assert {len(name) <= 52 for _, name in objects} == {True}
    (service,) = (name for kind, name in objects if kind == "Service" and name.endswith("coordinator"))
    (edge,) = (one for (kind, name), one in objects.items() if kind == "StatefulSet" and name != service)
    assert variables(edge)["SHOAL_EDGE__URL"] == f"http://{service}:8080"
    notes = helm.asked("install --dry-run=client --output json", {}, release)
    assert f"service/{service} 8080:8080" in json.loads(notes.stdout)["info"]["notes"]


def test_prometheus_is_sent_only_where_it_may_read(helm: Helm) -> None:
    closed = helm.objects({})["StatefulSet", "t-coordinator"]["spec"]["template"]["metadata"]
    assert "annotations" not in closed, "it would be told 401"
    opened = helm.objects({"coordinator": {"settings": {"anonymousRead": True}}})["StatefulSet", "t-coordinator"]
    assert opened["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == "8080"


def test_prometheus_operator_is_told_where_and_by_which_token(helm: Helm) -> None:
    objects = helm.objects({"monitoring": WATCHED | TOKEN})
    monitor, service = objects["ServiceMonitor", "t-coordinator"], objects["Service", "t-coordinator"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "viewer", "key": "token"}}
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    rule = objects["PrometheusRule", "t-coordinator"]
    assert rule["spec"] == yaml.safe_load((CHART.parents[1] / "prometheus" / "alerts.yml").read_text())
    assert {one["metadata"]["labels"]["release"] for one in (monitor, rule)} == {"p"}
    opened = helm.objects({"monitoring": WATCHED, "coordinator": {"settings": {"anonymous_read": True}}})
    assert "authorization" not in opened["ServiceMonitor", "t-coordinator"]["spec"]["endpoints"][0]


# Edge clients as peers, and their parts


def test_edge_clients_call_each_other_by_the_headless_service(helm: Helm) -> None:
    objects = helm.objects({"edgeClients": EDGE | {"replicas": 5}})
    edge, service = objects["StatefulSet", "t-edge-client"], objects["Service", "t-edge-client"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= edge["spec"]["template"]["metadata"]["labels"].items()
    assert edge["spec"]["serviceName"] == "t-edge-client"
    said = variables(edge)
    assert said["SHOAL_EDGE__PEER_LISTEN"] == "0.0.0.0:9001"
    assert said["SHOAL_EDGE__PEER_URL"] == "http://$(POD).t-edge-client.default.svc:9001"
    assert json.loads(said["SHOAL_EDGE__OPTIONS"].replace("$(INDEX)", "4")) == {"part": 4, "parts": 5}
    names = [one["name"] for one in pod_of(edge)["containers"][0]["env"]]
    assert max(names.index("POD"), names.index("INDEX")) < names.index("SHOAL_EDGE__OPTIONS"), (
        "else it is not filled in"
    )
    own = {"peerListen": "none", "options": {"a": 1}}
    other = variables(helm.objects({"edgeClients": EDGE | {"settings": own}})["StatefulSet", "t-edge-client"])
    assert (other["SHOAL_EDGE__PEER_LISTEN"], other["SHOAL_EDGE__OPTIONS"]) == ("none", '{"a":1}')
    assert "SHOAL_EDGE__PEER_URL" not in other


def test_pods_of_each_part_are_placed_apart(helm: Helm) -> None:
    objects = helm.objects({"edgeClients": EDGE | {"gpus": 1, "nodeSelector": {"gpu": "yes"}}})
    coordinator, edge = (pod_of(objects["StatefulSet", f"t-{part}"]) for part in ("coordinator", "edge-client"))
    assert edge["nodeSelector"] == {"gpu": "yes"}
    assert [one["key"] for one in edge["tolerations"]] == ["nvidia.com/gpu"]
    assert {"nodeSelector", "tolerations"}.isdisjoint(coordinator)
    for part, pod in (("coordinator", coordinator), ("edge-client", edge)):
        for spread in pod["topologySpreadConstraints"]:
            assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == part
        budget = objects["PodDisruptionBudget", f"t-{part}"]["spec"]
        assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == part


def test_users_code_reaches_no_database(helm: Helm) -> None:
    policies = {"networkPolicy": {"enabled": True}, "edgeClients": EDGE}
    reached = helm.objects(policies)["NetworkPolicy", "t-edge-client"]["spec"]
    assert reached["policyTypes"] == ["Ingress", "Egress"]
    to = [(one["ports"][0]["port"], [list(peer) for peer in one.get("to", [])]) for one in reached["egress"]]
    assert to == [(53, []), (9001, [["podSelector"]]), (8080, [["podSelector"]])]
    far = policies | {"edgeClients": EDGE | {"url": "https://far.example.org:8443/shoal"}}
    assert helm.objects(far)["NetworkPolicy", "t-edge-client"]["spec"]["egress"][-1]["ports"][0]["port"] == 8443


def test_an_ingress_holds_polls_and_takes_models_unless_told_otherwise(helm: Helm) -> None:
    said = helm.objects({"coordinator": {"ingress": INGRESS}})["Ingress", "t-coordinator"]["metadata"]["annotations"]
    assert said["a.example.org/b"] == "0"
    assert said["nginx.ingress.kubernetes.io/proxy-body-size"] == "0"
    assert said["nginx.ingress.kubernetes.io/proxy-request-buffering"] == "off"
    assert int(said["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 2 * Settings().poll_s_max
