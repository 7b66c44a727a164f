"""`finetune --trainable`: the head alone, adapters, or all weights; each leaves an ordinary model folder."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.finetuning.made_lessons import command, learn, learned, lesson, weights
from tests.finetuning.test_finetune import stop_at

from openalbert import cli
from openalbert.finetuning import frozen, trainable
from openalbert.finetuning.data import TaskData, load_data
from openalbert.finetuning.settings import Finetune
from openalbert.interop import huggingface
from openalbert.interop.weights import read_tensors
from openalbert.recipes.finetuning import defaults_for
from openalbert.train.device import Device

HEAD = "--trainable head"
CLS, SHORT = HEAD + " --head-pooling cls", HEAD + " --head-depth 1"
LORA = "--trainable lora --optimizer.learning-rate 0.01 --steps 150"
ON_CPU = Device(torch.device("cpu"), "fp32")


def data_of(kind: str, tiny: Path, folder: Path, *words: str) -> tuple[Finetune, TaskData]:
    file = lesson(kind, folder, 200)
    settings = cli.parse(Finetune, "finetune", [*command(tiny, kind, file, folder / "run")[1:], *words])
    return settings, load_data(settings)


@pytest.mark.parametrize(
    ("kind", "words", "least"),
    [
        ("classification", HEAD, 75.0),  # a frozen encoder of random weights
        ("classification", CLS, 66.0),
        ("classification", SHORT, 75.0),
        ("regression", HEAD, 20.0),
        ("multi_label", HEAD, 60.0),
        ("multiple_choice", HEAD, 60.0),
        ("classification", LORA, 95.0),
        ("question_answering", LORA, 30.0),
    ],
)
def test_each_kind_is_learned_and_the_folder_is_an_ordinary_one(
    kind: str, words: str, least: float, tiny: Path, tmp_path: Path
) -> None:
    scores = learn(tiny, kind, lesson(kind, tmp_path), tmp_path / "run", words)
    assert scores["scores"]["dev"][scores["main_metric"]] >= least
    before, after = read_tensors(tiny / "model.safetensors"), weights(tmp_path / "run")
    changed = {name for name, tensor in after.items() if name in before and not torch.equal(tensor, before[name])}
    layers = {name for name in changed if "albert_layers" in name}
    assert all("pooler" in name for name in changed - layers)
    assert len(layers) == (6 if words == LORA else 0)  # of one shared layer: query, key, value, output, up and down
    assert all(name.endswith("weight") for name in layers)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    shape = (config["num_hidden_layers"], config["num_hidden_groups"])
    assert shape == {HEAD: (3, 2), CLS: (2, 1), SHORT: (2, 2), LORA: (2, 1)}[words]


@pytest.mark.parametrize("words", [HEAD, CLS, SHORT, LORA])
def test_transformers_gives_the_same_logits(words: str, tiny: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "run", words)
    folder = tmp_path / "run" / "model"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = huggingface.load(folder)
    ids = torch.tensor([[2, 55, 81, 15, 44, 9, 3]])
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        torch.testing.assert_close(ours.scores("classification", ours.encode(ids)), expected, atol=1e-5, rtol=1e-5)


def test_a_run_that_is_stopped_resumes_to_the_same_bits_from_a_checkpoint_of_what_is_trained(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lesson("classification", tmp_path)
    words = LORA + " --steps 20 --log-every 1 --evaluate-every 7"
    learn(tiny, "classification", file, tmp_path / "whole", words)
    with monkeypatch.context() as patch:
        stop_at(9, patch)
        with pytest.raises(SystemExit):
            cli.main(command(tiny, "classification", file, tmp_path / "stopped", words))
    saved = read_tensors(tmp_path / "stopped" / "checkpoints" / "step-00000010" / "model.safetensors")
    assert all("lora_" in name or "pooler" in name or name.startswith("heads.") for name in saved)
    learn(tiny, "classification", file, tmp_path / "stopped", words)
    assert learned(tmp_path / "stopped") == learned(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "stopped")[name]), name


def test_a_dry_run_encodes_a_few_examples_and_estimates_the_rest(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frozen, "DRY_TOKENS", 100)
    monkeypatch.setattr(frozen, "TOKENS_AT_A_TIME", 100)
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", HEAD + " --dry-run"))
    assert not (tmp_path / "run").exists()
    shown, said = capsys.readouterr()
    assert "encoding train" in said
    assert "encoding dev" in said  # which takes time, too
    assert "--trainable head, 130 parameters (as given)" in shown
    assert re.search(r"steps +1\n", shown)


def test_the_default_depends_on_the_work_and_the_device_and_what_is_given_wins(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, data = data_of("classification", tiny, tmp_path)
    plain = replace(settings, steps=None, batch_size=None, optimizer=replace(settings.optimizer, learning_rate=None))
    small, reason = trainable.resolve(plain, data, ON_CPU)
    assert (small.trainable, reason) == ("all", "on a CPU that takes about 1 min")
    monkeypatch.setattr(trainable, "CPU_FLOPS", 1e3)
    large, reason = trainable.resolve(plain, data, ON_CPU)
    assert large.trainable == "head"
    assert "all weights would take about" in reason
    # What is about steps asks for a run that takes them.
    assert trainable.resolve(settings, data, ON_CPU)[0].trainable == "lora"
    assert trainable.resolve(replace(plain, seeds=3), data, ON_CPU)[0].trainable == "lora"
    on_gpu = Device(torch.device("cuda"), "bf16")
    assert trainable.resolve(settings, data, on_gpu)[0].trainable == "all"
    given, _ = data_of("classification", tiny, tmp_path, "--trainable", "all")
    assert trainable.resolve(given, data, ON_CPU)[0].trainable == "all"
    questions = data_of("question_answering", tiny, tmp_path)
    assert trainable.resolve(*questions, ON_CPU)[0].trainable == "lora"


def test_the_learning_rate_is_that_of_what_is_trained_unless_one_is_given(tiny: Path, tmp_path: Path) -> None:
    settings, data = data_of("classification", tiny, tmp_path)
    own = defaults_for("classification")
    of_recipe, _ = data_of("classification", tiny, tmp_path, "--optimizer.learning-rate", "5e-5")
    for chosen, rate in (("all", 5e-5), ("lora", 5e-4)):
        plain, _ = trainable.resolve(replace(own, trainable=chosen), data, ON_CPU)
        assert plain.optimizer.learning_rate == rate
        given, _ = trainable.resolve(replace(settings, trainable=chosen), data, ON_CPU)
        assert given.optimizer.learning_rate == 0.004
        # The recipe's own value counts as given as well.
        given, _ = trainable.resolve(replace(of_recipe, trainable=chosen), data, ON_CPU)
        assert given.optimizer.learning_rate == 5e-5


@pytest.mark.parametrize(
    ("words", "shape"),
    [(HEAD, (3, 2)), (HEAD + " --head-depth 1", (2, 2)), (CLS, (2, 1))],
    ids=["same", "short", "cls"],
)
def test_a_new_head_on_a_model_that_averages_adds_no_second_averaging_layer(
    words: str, shape: tuple[int, int], tiny: Path, tmp_path: Path
) -> None:
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "first", HEAD)
    other = command(Path(), "multi_label", lesson("multi_label", tmp_path), tmp_path / "run", words)
    start = tmp_path / "first" / "model"
    cli.main(["finetune", "--from", str(start), *other[2:]])
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_hidden_groups"]) == shape
    # The encoder is that of a head on the pretrained model itself.
    learn(tiny, "multi_label", lesson("multi_label", tmp_path), tmp_path / "direct", words)
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "direct")
    layers = [name for name in expected if "albert_layers" in name]
    assert layers
    assert all(torch.equal(found[name], expected[name]) for name in layers)


@pytest.mark.parametrize("words", ["--head-pooling cls", "--head-pooling cls_mean", "--head-depth 1"])
def test_what_a_head_reads_cannot_be_changed_where_it_is_trained_further(
    words: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path, 60)
    learn(tiny, "classification", file, tmp_path / "first", HEAD)
    again = command(Path(), "classification", file, tmp_path / "run", f"{HEAD} {words}")
    with pytest.raises(SystemExit):
        cli.main(["finetune", "--from", str(tmp_path / "first"), *again[2:]])
    assert f"{words.split()[0]} is for a new head" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("question_answering", "--trainable head", "needs one of each token: give --trainable lora or all"),
        ("classification", "--trainable head --from-scratch", "keeps the pretrained weights"),
        ("classification", "--trainable lora --optimizer.kind muon", "give --optimizer.kind adamw"),
        ("classification", "--trainable lora --speed.compile whole", "which needs --trainable all, not lora"),
        ("classification", "--trainable lora --lora-rank 0", "lora_rank is 0: it must be at least 1"),
        ("classification", "--trainable head --head-depth 3", "with 1 to 2 layers of this model"),
        ("classification", "--trainable lora --head-depth 1", "--trainable is lora"),
        ("classification", "--trainable all --head-pooling cls", "--head-pooling is for --trainable head"),
        ("classification", "--trainable heads", "head"),
        ("classification", "--trainable head --steps 9", "without chance: leave out --steps"),
        ("classification", "--trainable head --epochs 2 --keep best", "leave out --epochs and --keep"),
        ("classification", "--trainable head --patience 2 --minutes 1", "leave out --minutes and --patience"),
        ("classification", "--trainable head --optimizer.learning-rate 0.1", "leave out --optimizer.learning-rate"),
        ("classification", "--trainable head --seeds 3", "leave out --seeds (--folds shows how far scores vary)"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    kind: str, words: str, message: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(command(tiny, kind, lesson(kind, tmp_path, 60), tmp_path / "run", words))
    assert end.value.code
    assert message in capsys.readouterr().err
