import errno
import json
from pathlib import Path

import numpy as np
import pytest
from tests.pretraining.made_shards import made_shards

from openalbert import atomic_io
from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.pretraining.batches import Objective
from openalbert.pretraining.inspect import Inspect, inspect
from openalbert.text.shards import open_shards
from openalbert.text.tokenizer import Tokenizer

SHORT = Objective(max_length=64)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_shards(tmp_path_factory.mktemp("shards"))


def figures(folder: Path, capsys: pytest.CaptureFixture[str], **settings: object) -> dict:
    capsys.readouterr()
    inspect(Inspect(folder, json=True, **({"objective": SHORT} | settings)))  # type: ignore[arg-type]
    return json.loads(capsys.readouterr().out)


def test_counts_are_those_of_the_shards(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(folder, capsys)
    shards = open_shards(folder).shards
    assert found["counts"]["tokens"] == sum(len(shard.tokens) for shard in shards)
    assert found["counts"]["documents"] == sum(len(shard.document_starts) - 1 for shard in shards) == 60
    assert found["pairs"]["documents_too_short"] == sum(
        int((np.diff(shard.document_starts) == 1).sum()) for shard in shards
    )
    for name, of in (
        ("sentence_tokens", found["counts"]["sentences"]),
        ("document_tokens", 60),
        ("example_tokens", found["pairs"]["examples_per_epoch"]),
    ):
        assert sum(found["histograms"][name]["count"]) == of
    pairs = found["pairs"]
    read = round(pairs["tokens_per_example"] * pairs["examples_per_epoch"]) - 3 * pairs["examples_per_epoch"]
    assert read + pairs["trimmed_tokens"] + pairs["lone_tokens_left_out"] == found["counts"]["tokens"]


def test_masks_are_reported_as_they_were_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masks = figures(folder, capsys)["masks"]
    assert masks["predicted_fraction"] == pytest.approx(0.15, abs=0.005)
    assert masks["masked_fraction"] == pytest.approx(0.8, abs=0.05)
    assert masks["masked_fraction"] + masks["random_fraction"] + masks["kept_fraction"] == pytest.approx(1)
    runs = np.repeat(masks["run_words"]["words"], masks["run_words"]["count"])
    assert runs.mean() == pytest.approx(masks["run_words_mean"])
    assert 1.05 < runs.mean() < 2.2


def test_examples_read_as_the_text_with_every_hidden_token_marked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = figures(folder, capsys, examples=5)
    tokenizer = Tokenizer.load(folder / "tokenizer")
    text = " ".join(tokenizer.decode(shard.tokens.tolist()) for shard in open_shards(folder).shards)
    assert len(found["examples"]) == 5
    for example in found["examples"]:
        hidden = [token for part in ("first", "second") for token in example[part] if "fate" in token]
        assert len(hidden) == example["predictions"] > 0
        assert len(example["first"]) + len(example["second"]) + 3 == example["tokens"]
        for token in hidden:
            assert (token["shown"] == "[MASK]") == (token["fate"] == "masked")
            assert (token["shown"] == token["piece"]) == (token["fate"] == "kept")
        for part in ("first", "second"):
            ids = [tokenizer.piece_id(token["piece"]) for token in example[part]]
            assert tokenizer.decode(ids) in text


def test_the_picture_stands_in_the_folder_or_where_it_is_wanted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert figures(folder, capsys)["picture"] == str(folder / "inspect.png")
    assert (folder / "inspect.png").read_bytes().startswith(PNG)
    figures(folder, capsys, out=tmp_path / "here.png")
    assert (tmp_path / "here.png").read_bytes().startswith(PNG)


def test_a_full_disk_gives_a_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_io, "write_bytes", full)
    with pytest.raises(UserError, match=r"here.png: the disk is full .* another place for the picture with --out"):
        inspect(Inspect(folder, out=tmp_path / "here.png"))


def test_a_person_reads_it_without_colour(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    main(["inspect", str(folder), "--max-length", "64", "--examples", "2"])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out
    assert "60 documents" in shown.out
    assert "[word] hidden behind [MASK]" in shown.out
    assert "█" in shown.out
    assert shown.out.count("to predict") == 2
    assert shown.err.startswith("picture: ")


@pytest.mark.parametrize("no_colour", [False, True])
def test_colours_are_there_unless_they_are_not_wanted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_colour: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    capsys.readouterr()
    inspect(Inspect(folder, SHORT))
    assert ("\x1b[1;31m[" in capsys.readouterr().out) is not no_colour


def test_a_folder_without_shards_and_a_split_that_is_not_there_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="openalbert prepare"):
        inspect(Inspect(tmp_path))
    with pytest.raises(UserError, match="no split 'heldout'"):
        inspect(Inspect(folder, split="heldout"))
    with pytest.raises(UserError, match="below 0"):
        Inspect(folder, examples=-1)


def test_real_text_looks_as_albert_describes_it(
    real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from openalbert.text.prepare import Prepare, prepare

    text = str(real_data / "corpus" / "heldout-wikipedia.txt")
    prepare(Prepare((text,), tokenizer=real_data / "vocab" / "spiece.model", out=tmp_path / "shards", workers=1))
    found = figures(tmp_path / "shards", capsys, objective=Objective())
    pairs, masks = found["pairs"], found["masks"]
    examples = pairs["examples_per_epoch"]
    # Half are swapped, to five standard deviations.
    assert pairs["swapped_fraction"] == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(examples))
    # 90 % aim at the full length; ends of documents, about one in nine chunks here, fall short of it.
    assert 0.7 < pairs["full_length_fraction"] < 0.9
    assert masks["predicted_fraction"] == pytest.approx(0.15, abs=0.001)
    for name, share in (("masked", 0.8), ("random", 0.1), ("kept", 0.1)):
        assert masks[f"{name}_fraction"] == pytest.approx(share, abs=0.01)
    # Google's rule, 77 of 512: runs of 1, 2, 3 words 51.5, 26.7, 17.6 %, 1.77 on average; to 2 points and 0.06 words.
    runs = np.array(masks["run_words"]["count"])
    assert runs[:3] / runs.sum() == pytest.approx([0.515, 0.267, 0.176], abs=0.02)
    assert masks["run_words_mean"] == pytest.approx(1.77, abs=0.06)
