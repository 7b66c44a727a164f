import contextlib
import errno
import itertools
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.varied_lines import plain_lines

from openalbert import atomic_io
from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.text.sentences import split_sentences
from openalbert.text.tokenizer import Tokenizer
from openalbert.text.train_tokenizer import TrainVocabulary, draw_sample, train_vocabulary


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(plain_lines(2000)), encoding="utf-8")
    return file


def test_the_same_text_and_seed_give_the_same_bytes(text: Path, tmp_path: Path) -> None:
    packed = tmp_path / "elsewhere.txt.xz"
    packed.write_bytes(lzma.compress(text.read_bytes()))
    for out, seed, file in (("a", 3, text), ("b", 3, packed), ("c", 4, text)):
        train_vocabulary(TrainVocabulary((str(file),), tmp_path / out, 500, seed=seed, sample_sentences=1000))
    models = [(tmp_path / out / "spiece.model").read_bytes() for out in "abc"]
    assert models[0] == models[1]
    assert models[0] != models[2]


def test_the_command_prints_and_saves_a_report_that_is_true(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.txt"
    more.write_text("word " * 1000 + "\n\nΩ\n")  # one sentence over SentencePiece's limit, one rare character
    main(["tokenizer", "train", str(text), str(more), "--out", str(tmp_path / "out"), "--vocab-size", "700"])
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report == json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert "training" in printed.err
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert report["fingerprint"] == tokenizer.fingerprint
    assert report["vocab_size"] == tokenizer.vocab_size == 700
    assert report["sentences_skipped"] == 1
    assert report["sentences_sampled"] == report["sentences_read"] - 1
    sentences = split_sentences(text.read_text())
    num_tokens = sum(len(tokenizer.encode(sentence)) for sentence in sentences)
    assert report["characters_per_token"] == pytest.approx(sum(map(len, sentences)) / num_tokens, rel=1e-3)
    assert 0 < report["unknown_rate"] < 1e-3
    assert tokenizer.encode("Ω")[-1] == tokenizer.unk_id


def test_albert_pieces_have_their_ids(text: Path, tmp_path: Path) -> None:
    train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", 500))
    pieces = Tokenizer.load(tmp_path / "out").pieces(range(13))
    assert pieces == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "(", ")", '"', "-", ".", "–", "£", "€"]


def test_a_cased_vocabulary_with_bytes_writes_every_character(text: Path, tmp_path: Path) -> None:
    settings = TrainVocabulary((str(text),), tmp_path / "out", 800, cased=True, keep_accents=True, byte_fallback=True)
    train_vocabulary(settings)
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("The Größe 中文 😀")) == "The Größe 中文 😀"
    assert json.loads((tmp_path / "out" / "vocabulary.json").read_text())["unknown_rate"] == 0
    assert tokenizer.byte_ids.sum() == 256


def test_too_little_text_names_the_largest_vocabulary_that_is_possible(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too few different words for a vocabulary of 30000") as error:
        train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out"))
    largest = re.search(r"largest possible is (\d+)", str(error.value))
    assert largest
    assert not list(tmp_path.iterdir())  # nothing half-made is left
    train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", int(largest[1])))
    assert Tokenizer.load(tmp_path / "out").vocab_size == int(largest[1])


def test_too_small_a_vocabulary_names_the_smallest_that_is_possible(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too small for the different characters") as error:
        train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", 30))
    least = re.search(r"at least (\d+) is needed", str(error.value))
    assert least
    train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", int(least[1])))


def test_text_without_sentences_is_refused(tmp_path: Path) -> None:
    giant = tmp_path / "giant.txt"
    giant.write_text("x" * 100_000)
    with pytest.raises(UserError, match="no sentence of at most 4192 bytes"):
        train_vocabulary(TrainVocabulary((str(giant),), tmp_path / "out", 100))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vocab_size": 5}, "vocab-size is 5"),
        ({"character_coverage": 2.0}, "character-coverage is 2.0"),
        ({"sample_sentences": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    text: Path, tmp_path: Path, change: dict[str, float], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", **change))  # type: ignore[arg-type]


def test_nothing_is_overwritten_silently(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    first = TrainVocabulary((str(text),), out, 500)
    train_vocabulary(first)
    before = (out / "spiece.model").stat()
    printed = capsys.readouterr().out
    train_vocabulary(first)  # the same again: nothing to do, the same report
    assert capsys.readouterr().out == printed
    assert (out / "spiece.model").stat().st_mtime_ns == before.st_mtime_ns
    other = TrainVocabulary((str(text),), out, 550)
    with pytest.raises(UserError, match=r"exists and was not made by these settings.*--fresh"):
        train_vocabulary(other)
    train_vocabulary(TrainVocabulary((str(text),), out, 550, fresh=True))
    assert Tokenizer.load(out).vocab_size == 550


def test_a_vocabulary_of_unknown_origin_is_not_overwritten(text: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"somebody's")
    with pytest.raises(UserError, match="exists and was not made by these settings"):
        train_vocabulary(TrainVocabulary((str(text),), tmp_path, 500))
    assert (tmp_path / "spiece.model").read_bytes() == b"somebody's"


@pytest.fixture
def train_state(text: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """A training that has begun, and whose SentencePiece is stopped, so that it does not end before the test does."""
    big = tmp_path / "big.txt"
    big.write_text(text.read_text() * 60)
    command = ["tokenizer", "train", str(big), "--out", str(tmp_path / "out"), "--vocab-size", "900"]
    process = subprocess.Popen([sys.executable, "-m", "openalbert", *command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool(working_in(tmp_path / "out.partial")))
    os.kill(int(working_in(tmp_path / "out.partial")[0]), signal.SIGSTOP)
    return process


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_stopped_training_stops_sentencepiece_too(
    text: Path, tmp_path: Path, train_state: subprocess.Popen[str], sign: signal.Signals, code: int
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    train_state.send_signal(sign)
    train_state.communicate(timeout=60)
    assert train_state.returncode == code
    for left in working_in(partial):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(left), signal.SIGCONT)
    wait_until(lambda: not working_in(partial))
    assert not out.exists()
    assert partial.exists() == (sign == signal.SIGKILL)
    train_vocabulary(TrainVocabulary((str(text),), out, 500))  # what a killed one has left is no hindrance
    assert not partial.exists()


def test_a_lack_of_memory_is_told_as_one(tmp_path: Path, train_state: subprocess.Popen[str]) -> None:
    os.kill(int(working_in(tmp_path / "out.partial")[0]), signal.SIGKILL)
    _, error = train_state.communicate(timeout=60)
    assert train_state.returncode == 1
    assert "error: SentencePiece was killed by signal 9" in error
    assert "lower --sample-megabytes" in error
    assert [path.name for path in tmp_path.iterdir()] == ["big.txt"]


def working_in(folder: Path) -> list[str]:
    """The processes whose working folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
    return found


def wait_until(info: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not info():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@given(
    st.lists(st.text("abé", max_size=6), max_size=60),
    st.integers(1, 40),
    st.integers(1, 100),
    st.integers(0, 5),
)
def test_a_sample_is_bounded_and_whole_where_everything_fits(
    sentences: list[str], most: int, most_bytes: int, seed: int
) -> None:
    sample = draw_sample(iter(sentences), most, most_bytes, seed)
    assert sample.seen == len(sentences)
    assert len(sample.sentences) <= most
    size = sum(len(sentence.encode()) for sentence in sample.sentences)
    assert size <= most_bytes
    assert Counter(sample.sentences) <= Counter(sentences)
    if len(sentences) <= most and sum(len(sentence.encode()) for sentence in sentences) <= most_bytes:
        assert Counter(sample.sentences) == Counter(sentences)
    assert sample == draw_sample(iter(sentences), most, most_bytes, seed)


def test_a_text_that_is_there_twice_leaves_no_long_repeat_for_sentencepiece_to_find() -> None:
    # It takes the square of a repeat's length: 100 kB twice in a row took ten minutes.
    text = [f"sentence {number}" for number in range(1000)]
    sample = draw_sample(text * 2, 10_000, 10**6, 0).sentences
    neighbours = Counter(itertools.pairwise(sample))
    assert sum(count - 1 for count in neighbours.values()) < 10


def test_every_sentence_has_the_same_chance_to_be_sampled() -> None:
    sentences = [f"{number:02d}" for number in range(20)]
    drawn = Counter[str]()
    for seed in range(2000):
        drawn.update(draw_sample(sentences, 5, 1000, seed).sentences)
    # 2000 draws of 5 out of 20: 500 each, with a standard deviation of 19; five of those.
    assert all(abs(drawn[sentence] - 500) < 97 for sentence in sentences)


def test_a_file_is_not_taken_for_the_folder_to_make(text: Path) -> None:
    with pytest.raises(UserError, match=r"text.txt is not a folder: give another name"):
        train_vocabulary(TrainVocabulary((str(text),), text, 500))


def test_a_full_disk_gives_a_sentence_and_leaves_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_io, "write_bytes", full)
    with pytest.raises(UserError, match=r"out: the disk is full \(No space left on device\): make room there and run"):
        train_vocabulary(TrainVocabulary((str(text),), tmp_path / "out", 500))
    assert [*tmp_path.rglob("*")] == [tmp_path / "out"]
