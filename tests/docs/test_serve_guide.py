"""The guide on serving is correct: the server it starts answers the requests that stand there."""

import re
import shutil
from pathlib import Path

import pytest
from tests.docs.test_guides import commands, run
from tests.serve.http_api.test_server import Process

from openalbert import cli
from openalbert.serve.http_api.server import Serve


def test_the_server_of_the_guide_answers_its_requests(tmp_path: Path) -> None:
    (_, install), (_, start), (_, curl), (_, python) = commands("serve-your-model.md")
    assert install == 'pip install "openalbert[serve]"\n'
    assert start.startswith("openalbert serve ")
    process = Process(*start.split()[2:])
    try:
        done = run("python", python.replace("http://127.0.0.1:8000", process.url), tmp_path)
        assert done.stdout.splitlines() == ["door", "(1, 768)", "2 768"], done.stderr
        if shutil.which("curl"):
            done = run("sh", curl.replace("http://127.0.0.1:8000", process.url), tmp_path)
            assert done.returncode == 0, done.stderr
            assert '"token_str":"door"' in done.stdout
            near, far = map(float, re.findall(r"0\.\d+", done.stdout.rpartition("[")[2]))
            assert near > far
    finally:
        process.process.terminate()
        assert process.end() == 0


@pytest.mark.parametrize("page", ["docs/guides/serve-your-model.md", "deploy/Dockerfile"])
def test_the_settings_that_are_named_are_settings(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    for line in re.findall(r"openalbert serve (.*)", text):
        cli.parse(Serve, "serve", re.split(r"[`\n]", line)[0].split() or ["a"])
