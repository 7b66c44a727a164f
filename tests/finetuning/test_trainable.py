"""`finetune --trainable`: the head alone, adapters, or all weights; each leaves an ordinary model folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.finetuning.made_lessons import command, learn, learned, lesson, weights
from tests.finetuning.test_finetune import stop_at

from openalbert import cli
from openalbert.finetuning import frozen, trainable
from openalbert.finetuning.batches import Packing
from openalbert.finetuning.data import TaskData, load_data
from openalbert.finetuning.frozen import FrozenStates, standardize_pooler
from openalbert.finetuning.losses import finetuning_scores
from openalbert.finetuning.settings import Finetune
from openalbert.interop import huggingface
from openalbert.interop.weights import read_tensors
from openalbert.recipes.finetuning import defaults_for
from openalbert.train.device import Device

HEAD = "--trainable head --optimizer.learning-rate 0.01"
CLS, SHORT = HEAD + " --head-pooling cls", HEAD + " --head-depth 1"
LORA = "--trainable lora --optimizer.learning-rate 0.01"
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
    scores = learn(tiny, kind, lesson(kind, tmp_path), tmp_path / "run", words + " --steps 150")
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
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "run", words + " --steps 30")
    folder = tmp_path / "run" / "model"
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = huggingface.load(folder)
    ids = torch.tensor([[2, 55, 81, 15, 44, 9, 3]])
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
        torch.testing.assert_close(ours.scores("classification", ours.encode(ids)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("words", [HEAD, LORA])
def test_a_run_that_is_stopped_resumes_to_the_same_bits_from_a_checkpoint_of_what_is_trained(
    words: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lesson("classification", tmp_path)
    words += " --steps 20 --log-every 1 --evaluate-every 7"
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


@pytest.mark.parametrize("kind", ["classification", "multiple_choice"])
def test_states_that_were_computed_once_give_the_losses_and_gradients_of_the_whole_model(
    kind: str, tiny: Path, tmp_path: Path
) -> None:
    _, data = data_of(kind, tiny, tmp_path)
    sequences = data.train.encoding.sequences
    states = FrozenStates(data.make_model(1, False), ON_CPU).of("train", sequences)
    model = data.make_model(1, False)
    standardize_pooler(model, states)
    found = []
    for given in (None, states):
        [batch] = Packing(sequences, 16, 1, tokens_at_a_time=10**6, states=given).at(0)
        model.zero_grad()
        model.encoder.requires_grad_(given is None)
        model.encoder.pooler.requires_grad_(True)
        score = finetuning_scores(model, batch, model.config.num_layers)[kind]
        score.loss_sum.backward()
        head = model.heads[kind].dense
        found.append((score.loss_sum.detach(), model.encoder.pooler.weight.grad, head.weight.grad))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_a_standardized_pooler_gives_scikit_learn_the_features_that_standardized_states_give(
    tiny: Path, tmp_path: Path
) -> None:
    _, data = data_of("classification", tiny, tmp_path)
    sequences = data.train.encoding.sequences
    model = data.make_model(1, False)
    states = FrozenStates(model, ON_CPU).of("train", sequences)
    standardize_pooler(model, states)
    inputs = states.numpy()
    expected = np.tanh((inputs - inputs.mean(0)) / inputs.std(0))
    with torch.no_grad():
        features = model.encoder.pool(states).numpy()
    np.testing.assert_allclose(features, expected, atol=2e-4)
    wanted = sequences.targets["classification"]
    oracle = LogisticRegression(C=0.1, max_iter=1000).fit(expected, wanted)
    # The head at the optimum of scikit-learn: its gradient, with that of the penalty, is 0 in our loss as well.
    head = model.heads["classification"].dense
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(np.concatenate([-oracle.coef_, oracle.coef_]) / 2))
        head.bias.copy_(torch.from_numpy(np.concatenate([-oracle.intercept_, oracle.intercept_]) / 2))
    model.eval()
    [batch] = Packing(sequences, len(wanted), 1, tokens_at_a_time=10**6, states=states).at(0)
    finetuning_scores(model, batch, 1)["classification"].loss_sum.backward()
    torch.testing.assert_close(0.1 * head.weight.grad, -2 * head.weight.detach(), atol=2e-3, rtol=0.01)


def test_several_seeds_share_one_pass_of_the_encoder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = FrozenStates._encode

    def counted(self: FrozenStates, name: str, sequences: Any) -> torch.Tensor:
        encoded.append(name)
        return encode(self, name, sequences)

    monkeypatch.setattr(FrozenStates, "_encode", counted)
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", HEAD + " --seeds 3 --steps 20"))
    assert encoded == ["train", "dev"]
    assert len(json.loads((tmp_path / "run" / "seeds.json").read_text())["runs"]) == 3


def test_a_dry_run_encodes_a_few_examples_and_estimates_the_rest(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frozen, "DRY_TOKENS", 100)
    monkeypatch.setattr(frozen, "TOKENS_AT_A_TIME", 100)
    file = lesson("classification", tmp_path)
    cli.main(command(tiny, "classification", file, tmp_path / "run", HEAD + " --dry-run"))
    assert not (tmp_path / "run").exists()
    assert "--trainable head, 4,290 parameters (as given)" in capsys.readouterr().out


def test_the_default_depends_on_the_work_and_the_device_and_what_is_given_wins(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, data = data_of("classification", tiny, tmp_path)
    small, reason = trainable.resolve(settings, data, ON_CPU)
    assert (small.trainable, reason) == ("all", "on a CPU that takes about 1 min")
    monkeypatch.setattr(trainable, "CPU_FLOPS", 1e3)
    large, reason = trainable.resolve(settings, data, ON_CPU)
    assert large.trainable == "head"
    assert "all weights would take about" in reason
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
    for chosen, rate in (("all", 5e-5), ("lora", 5e-4), ("head", 1e-3)):
        plain, _ = trainable.resolve(replace(own, trainable=chosen), data, ON_CPU)
        assert plain.optimizer.learning_rate == rate
        given, _ = trainable.resolve(replace(settings, trainable=chosen), data, ON_CPU)
        assert given.optimizer.learning_rate == 0.004
        # The recipe's own value counts as given as well.
        given, _ = trainable.resolve(replace(of_recipe, trainable=chosen), data, ON_CPU)
        assert given.optimizer.learning_rate == 5e-5


def test_the_head_is_trained_to_its_end_unless_another_patience_is_given(tiny: Path, tmp_path: Path) -> None:
    _, data = data_of("classification", tiny, tmp_path)
    own = defaults_for("classification")
    head, _ = trainable.resolve(replace(own, trainable="head"), data, ON_CPU)
    assert (head.patience, head.keep) == (None, "last")
    given, _ = trainable.resolve(replace(own, trainable="head", patience=7, keep="best"), data, ON_CPU)
    assert (given.patience, given.keep) == (7, "best")
    all_weights, _ = trainable.resolve(replace(own, trainable="all"), data, ON_CPU)
    assert (all_weights.patience, all_weights.keep) == (3, "best")


@pytest.mark.parametrize(
    ("words", "shape"),
    [(HEAD, (3, 2)), (HEAD + " --head-depth 1", (2, 2)), (CLS, (2, 1))],
    ids=["same", "short", "cls"],
)
def test_a_new_head_on_a_model_that_averages_adds_no_second_averaging_layer(
    words: str, shape: tuple[int, int], tiny: Path, tmp_path: Path
) -> None:
    learn(tiny, "classification", lesson("classification", tmp_path), tmp_path / "first", HEAD + " --steps 5")
    other = command(Path(), "multi_label", lesson("multi_label", tmp_path), tmp_path / "run", words + " --steps 5")
    start = tmp_path / "first" / "model"
    cli.main(["finetune", "--from", str(start), *other[2:]])
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_hidden_groups"]) == shape
    # The encoder is that of a head on the pretrained model itself.
    learn(tiny, "multi_label", lesson("multi_label", tmp_path), tmp_path / "direct", words + " --steps 5")
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "direct")
    layers = [name for name in expected if "albert_layers" in name]
    assert layers
    assert all(torch.equal(found[name], expected[name]) for name in layers)


@pytest.mark.parametrize("words", ["--head-pooling cls", "--head-pooling cls_mean", "--head-depth 1"])
def test_what_a_head_reads_cannot_be_changed_where_it_is_trained_further(
    words: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = lesson("classification", tmp_path, 60)
    learn(tiny, "classification", file, tmp_path / "first", HEAD + " --steps 2")
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
    ],
)
def test_what_cannot_be_trained_is_refused(
    kind: str, words: str, message: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(command(tiny, kind, lesson(kind, tmp_path, 60), tmp_path / "run", words))
    assert end.value.code
    assert message in capsys.readouterr().err
