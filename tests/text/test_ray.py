"""`prepare --engine ray` on a real cluster of two nodes gives the bytes that this machine gives alone."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.text import made_text
from tests.text.test_prepare import tree

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.text import source_groups, workers
from openalbert.text.corpus import CorpusReading, CorpusSource
from openalbert.text.source_groups import Group, Job

# In a process of its own: Ray starts servers, and warns of much that is not ours.
DRIVER = """
import json, subprocess, sys, threading, time
from pathlib import Path
from ray.cluster_utils import Cluster
from openalbert.cli import main
from openalbert.text import source_groups

def watch(stop, nodes):
    # A process of the cluster carries its task as its name, and its parent is the node it belongs to.
    while not stop.is_set():
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if b"_do_on_node" in (process / "cmdline").read_bytes()[:40]:
                    nodes.add((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass
        time.sleep(0.01)

SET = "source_groups.BLOCK_CHARACTERS, source_groups.GROUP_BYTES = 20_000, 50_000"
FIRST = f"from openalbert.cli import main; from openalbert.text import source_groups; {SET}; "
source_groups.BLOCK_CHARACTERS, source_groups.GROUP_BYTES = 20_000, 50_000
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()

# First a run that is killed as soon as there is something to go on with.
words = json.loads(sys.argv[1])[0] + ["--ray-address", cluster.address]
killed = subprocess.Popen([sys.executable, "-c", FIRST + f"main({words!r})"], stdout=subprocess.DEVNULL)
out = Path(words[words.index("--out") + 1])
while killed.poll() is None and not list(out.glob("shards/*/piece.json")):
    time.sleep(0.002)
killed.kill()
print(json.dumps({"killed": killed.wait(), "pieces": len(list(out.glob("shards/*/piece.json")))}))

nodes, stop = set(), threading.Event()
thread = threading.Thread(target=watch, args=(stop, nodes))
thread.start()
try:
    for words in json.loads(sys.argv[1]):
        try:
            main([*words, "--ray-address", cluster.address])
        except SystemExit as ended:
            print("ended with", ended.code, file=sys.stderr)
finally:
    stop.set()
    thread.join()
    cluster.shutdown()
print(json.dumps({"nodes": len(nodes)}))
"""


def test_two_nodes_of_a_ray_cluster_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_groups, "BLOCK_CHARACTERS", 20_000)
    monkeypatch.setattr(source_groups, "GROUP_BYTES", 50_000)
    vocabulary = made_text.write_vocabulary(tmp_path / "vocabulary")
    texts = made_text.documents(400_000, 4)
    for part in range(8):
        chosen = texts[part::8] + (texts[:3] if part == 5 else [])
        (tmp_path / f"{part}.txt").write_text("\n\n".join(chosen))
    (tmp_path / "bad.txt").write_bytes(os.urandom(100_000))
    common = ["--tokenizer", str(vocabulary), "--heldout", "0.1", "--shard-tokens", "9000"]
    good = ["prepare", str(tmp_path / "[0-9].txt"), *common, "--drop-duplicates"]
    main([*good, "--out", str(tmp_path / "alone"), "--workers", "1"])
    on_ray = [
        [*good, "--engine", "ray", "--out", str(tmp_path / "ray")],
        ["prepare", str(tmp_path / "bad.txt"), *common, "--engine", "ray", "--out", str(tmp_path / "bad")],
    ]
    (tmp_path / "driver.py").write_text(DRIVER)
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), json.dumps(on_ray)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert ran.returncode == 0, ran.stderr
    assert tree(tmp_path / "ray") == tree(tmp_path / "alone")
    assert json.loads(ran.stdout.splitlines()[-1]) == {"nodes": 2}
    first = json.loads(ran.stdout.splitlines()[0])
    assert first["killed"] == -signal.SIGKILL
    assert first["pieces"] > 0
    # A mistake that shows on a node comes back as one sentence.
    assert "error: " + str(tmp_path / "bad.txt") in ran.stderr
    assert "not UTF-8 text" in ran.stderr
    assert "ended with 1" in ran.stderr
    assert not (tmp_path / "bad" / "manifest.json").exists()


def test_a_machine_that_cannot_see_the_files_says_so(tmp_path: Path) -> None:
    job = Job(tmp_path / "s", CorpusReading(), 0.0, False, 1000, "uint16", 1000)
    group = Group(0, (CorpusSource(str(tmp_path / "a.txt"), "text", 5),))
    with pytest.raises(UserError, match=r"plan.json cannot be seen from the machine .* storage that all machines"):
        workers._check_node(job, group)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "plan.json").touch()
    with pytest.raises(UserError, match=r"a.txt cannot be seen from the machine"):
        workers._check_node(job, group)


def test_no_cluster_and_no_ray_each_give_a_sentence(tmp_path: Path) -> None:
    vocabulary = made_text.write_vocabulary(tmp_path / "vocabulary")
    (tmp_path / "a.txt").write_text("A text.")
    words = ["prepare", str(tmp_path / "a.txt"), "--tokenizer", str(vocabulary), "--out", str(tmp_path / "s")]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there
    for hide, sentence in (
        ("", f"error: no Ray cluster can be reached at '{address}'"),
        (
            "import sys; sys.modules['ray'] = None; ",
            "error: --engine ray needs an extra: pip install 'openalbert[ray]'",
        ),
    ):
        code = f"{hide}from openalbert.cli import main; main({[*words, '--engine', 'ray', '--ray-address', address]!r})"
        ran = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 1
        assert sentence in ran.stderr
        assert "Traceback" not in ran.stderr
