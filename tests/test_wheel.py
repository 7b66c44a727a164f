"""The wheel holds all that is needed: it works in an environment of its own, and the source archive makes the same."""

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 50 * 2**20  # bytes, so that it can be passed on


def run(words: list[str | Path], folder: Path) -> str:
    # Neither the checkout nor the settings of the test run are visible.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_"))}
    done = subprocess.run(list(map(str, words)), cwd=folder, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def build(target: str, source: Path, into: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", into], source)
    [made] = into.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


HIDE = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def find_what_is_not_hidden(name, path=None, target=None):
    return None if name.partition(".")[0] in {hidden!r} else find_spec(name, path, target)

PathFinder.find_spec = find_what_is_not_hidden
"""


def required_packages(name: str) -> set[str]:
    """The distributions that come with this one, those of its extras left out."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop().lower().replace("_", "-")
        if one in found:
            continue
        try:
            lines = importlib.metadata.requires(one) or []
        except importlib.metadata.PackageNotFoundError:  # for another system, or part of a GPU's build
            continue
        found.add(one)
        needed = map(Requirement, lines)
        waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def hidden_modules() -> set[str]:
    """The modules of this environment that nobody has who installs openalbert without extras."""
    kept = required_packages("openalbert")
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not kept & {owner.lower().replace("_", "-") for owner in owners} and module != "pip"
    }


@pytest.mark.slow
def test_the_wheel_works_where_only_it_and_its_dependencies_are(tmp_path: Path) -> None:
    wheel = build("wheel", ROOT, tmp_path / "wheel")
    assert wheel.stat().st_size <= LARGEST
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel], tmp_path)
    # The dependencies are those of this environment, and what else is there is hidden. Its own .pth files, and so the
    # checkout, are not read from there.
    [site] = (home / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    hidden = hidden_modules()
    assert {"transformers", "onnxruntime", "pyarrow", "fastapi"} <= hidden
    assert not {"torch", "numpy", "sklearn", "openalbert"} & hidden
    (site / "sitecustomize.py").write_text(HIDE.format(hidden=sorted(hidden)))
    assert str(home) in run([python, "-c", "import openalbert; print(openalbert.__file__)"], tmp_path)
    run([python, "-c", "import importlib.util as util; assert util.find_spec('transformers') is None"], tmp_path)
    openalbert = home / "bin" / "openalbert"
    assert "finetune" in run([openalbert, "--help"], tmp_path)
    assert "albert-base-wikibooks" in run([openalbert, "models"], tmp_path)
    text = "She opened the [MASK] and walked into the room."
    found = json.loads(run([openalbert, "fill", "albert-base-wikibooks", text, "--json"], tmp_path).splitlines()[-1])
    assert "door" in json.dumps(found)
    # A run needs the files for pages and model cards too.
    rows = [f"the {'good' if number % 2 else 'bad'} text number {number},{number % 2}" for number in range(20)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    words = "finetune albert-base-wikibooks --task classification --train rows.csv --out run --steps 1 --batch-size 2"
    run([openalbert, *words.split()], tmp_path)
    assert (tmp_path / "run" / "report.html").exists()
    assert "accuracy" in run([openalbert, "evaluate", "run", "--dev", "rows.csv"], tmp_path)
    assert run([openalbert, "predict", "run", "a good text"], tmp_path)


@pytest.mark.slow
def test_the_source_archive_makes_the_same_wheel_and_has_the_tests(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "archive")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    for name in (
        "Makefile",
        "constraints.txt",
        "tests/conftest.py",
        "bench",
        "docs/tour.md",
        "LICENSE",
        "CHANGELOG.md",
    ):
        assert (source / name).exists()
    contents = []
    for number, place in enumerate((ROOT, source)):
        with zipfile.ZipFile(build("wheel", place, tmp_path / f"wheel-{number}")) as wheel:
            contents.append({one.filename: one.CRC for one in wheel.infolist() if not one.filename.endswith("RECORD")})
    assert contents[0] == contents[1]
