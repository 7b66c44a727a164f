"""`prepare` and `verify`: the same bytes whoever does the work and however often it is stopped."""

import bz2
import dataclasses
import hashlib
import itertools
import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.text import made_text

from openalbert.cli import main
from openalbert.errors import UserError
from openalbert.text import corpus, shards, source_groups
from openalbert.text.corpus import CorpusReading, CorpusSource, Counts
from openalbert.text.prepare import Prepare, Verify, prepare, verify
from openalbert.text.sentences import split_sentences
from openalbert.text.shards import open_shards, read_manifest
from openalbert.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_text.write_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Documents by file name; some stand twice in a file, some in two files."""
    found = {name: made_text.documents(150_000, seed) for seed, name in enumerate(("a.txt", "b.jsonl.bz2", "c.txt.xz"))}
    found["a.txt"][7:7] = found["a.txt"][2:5]
    found["c.txt.xz"] += found["a.txt"][20:30] + found["b.jsonl.bz2"][3:4]
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, list[str]]) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text("\n\n".join(texts["a.txt"]))
    lines = [json.dumps({"text": text}) for text in texts["b.jsonl.bz2"]]
    (folder / "b.jsonl.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    (folder / "c.txt.xz").write_bytes(lzma.compress("\n\n".join(texts["c.txt.xz"]).encode()))
    return tuple(str(folder / name) for name in texts)


@pytest.fixture
def small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts so small that the made-up corpus has several groups, and each of them several blocks and pieces."""
    monkeypatch.setattr(source_groups, "BLOCK_CHARACTERS", 20_000)
    monkeypatch.setattr(source_groups, "GROUP_BYTES", 120_000)


def tree(folder: Path) -> dict[str, str]:
    """Every file with its checksum."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_back(folder: Path, split: str = "train") -> list[list[list[int]]]:
    found = []
    for shard in open_shards(folder, split).shards:
        for first, last in itertools.pairwise(shard.document_starts.tolist()):
            starts = shard.sentence_starts[first : last + 1].tolist()
            found.append([shard.tokens[a:b].tolist() for a, b in itertools.pairwise(starts)])
    return found


@pytest.mark.usefixtures("small_cuts")
def test_the_shards_hold_every_sentence_of_every_document_in_order(
    tmp_path: Path, files: tuple[str, ...], texts: dict[str, list[str]], vocabulary: Path
) -> None:
    prepare(Prepare(files, vocabulary, tmp_path / "s", shard_tokens=50_000, workers=1))
    tokenizer = Tokenizer.load(vocabulary)
    expected = [
        [tokenizer.encode(sentence) for sentence in split_sentences(text)] for each in texts.values() for text in each
    ]
    assert read_back(tmp_path / "s") == expected
    counts = read_manifest(tmp_path / "s").counts
    assert counts["documents"] == counts["train_documents"] == len(expected)
    assert counts["train_sentences"] == sum(map(len, expected))
    assert counts["train_tokens"] == sum(len(sentence) for document in expected for sentence in document)
    assert counts["single_sentence_documents"] == sum(len(document) == 1 for document in expected)
    assert counts["bytes_read"] == sum(Path(file).stat().st_size for file in files)


@pytest.mark.usefixtures("small_cuts")
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path
) -> None:
    asked = Prepare(
        files, vocabulary, tmp_path / "1", heldout=0.1, drop_duplicates=True, shard_tokens=10_000, workers=1
    )
    prepare(asked)
    reference = tree(tmp_path / "1")
    assert len(open_shards(tmp_path / "1").shards) > 6
    for workers in (2, 5):  # more than four also take whole groups for themselves
        out = tmp_path / str(workers)
        prepare(dataclasses.replace(asked, out=out, workers=workers))
        assert tree(out) == reference
    assert not (tmp_path / "1" / "duplicates").exists()


def test_of_equal_documents_the_first_in_file_order_stays(
    tmp_path: Path, files: tuple[str, ...], texts: dict[str, list[str]], vocabulary: Path
) -> None:
    prepare(Prepare(files, vocabulary, tmp_path / "s", drop_duplicates=True, workers=1))
    tokenizer = Tokenizer.load(vocabulary)
    every = [text for each in texts.values() for text in each]
    expected = [[tokenizer.encode(s) for s in split_sentences(text)] for text in dict.fromkeys(every)]
    assert read_back(tmp_path / "s") == expected
    counts = read_manifest(tmp_path / "s").counts
    assert counts["dropped_duplicates"] == len(every) - len(expected) >= 14
    assert counts["documents"] == len(every)


def test_duplicates_are_found_in_bounded_memory_by_comparing_them_in_classes(tmp_path: Path) -> None:
    dice = random.Random(5)
    marks = [[dice.randbytes(16) for _ in range(400)] for _ in range(3)]
    marks[2][5] = marks[2][9] = marks[0][7]
    marks[1][0] = marks[0][399]
    parts = [source_groups.Group(number, ()) for number in range(3)]
    for number, each in enumerate(marks):
        (tmp_path / f"duplicates/{number:05d}").mkdir(parents=True)
        (tmp_path / f"duplicates/{number:05d}/marks").write_bytes(b"".join(each))
    for at_once in (10_000, 300, 1):
        source_groups.find_duplicates(tmp_path, parts, at_once)
        found = [source_groups.read_duplicates(tmp_path, number).tolist() for number in range(3)]
        assert found[:2] == [[], [0]]
        assert sorted(found[2]) == found[2] == [5, 9]


def test_what_is_held_out_hangs_on_the_text_alone(
    tmp_path: Path, files: tuple[str, ...], texts: dict[str, list[str]], vocabulary: Path
) -> None:
    for share, names in ((0.1, files), (0.3, tuple(reversed(files)))):
        prepare(Prepare(names, vocabulary, tmp_path / str(share), heldout=share, workers=1))
    few, more = (read_back(tmp_path / share, "heldout") for share in ("0.1", "0.3"))
    assert all(document in more for document in few)
    every = [text for each in texts.values() for text in each]
    assert len(few) + len(read_back(tmp_path / "0.1")) == len(every)
    assert len(few) == sum(source_groups.is_held_out(text, 0.1) for text in every)
    # Five standard deviations of a fair draw.
    assert abs(len(few) - 0.1 * len(every)) < 5 * (0.09 * len(every)) ** 0.5
    assert abs(len(more) - 0.3 * len(every)) < 5 * (0.21 * len(every)) ** 0.5


def test_small_files_share_a_group_and_big_ones_stand_alone() -> None:
    sizes = [10, 20, 70_000_000, 30, 40_000_000, 23_999_970, 1, None, 5, 0]
    sources = [CorpusSource(str(place), "text", size) for place, size in enumerate(sizes)]
    found = [[int(source.name) for source in group.sources] for group in source_groups.make_groups(sources)]
    assert found == [[0, 1], [2], [3, 4, 5], [6], [7], [8, 9]]


@pytest.mark.usefixtures("small_cuts")
def test_a_stopped_run_goes_on_without_doing_the_same_piece_twice(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Prepare(files, vocabulary, tmp_path / "whole", heldout=0.1, shard_tokens=10_000, workers=1)
    prepare(asked)
    reference = tree(tmp_path / "whole")
    asked = dataclasses.replace(asked, out=tmp_path / "stopped")
    written: list[str] = []
    write_piece = shards.write_piece

    def stop_after_two(folder: Path, name: str, *rest: object) -> shards.Piece:
        if len(written) % 3 == 2:
            written.append("stopped")
            raise KeyboardInterrupt
        written.append(name)
        return write_piece(folder, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "write_piece", stop_after_two)
    for _ in range(50):
        with pytest.raises(UserError, match=r"not finished|no shards here"):
            open_shards(tmp_path / "stopped")
        try:
            prepare(asked)
            break
        except KeyboardInterrupt:
            pass
    pieces = [name for name in written if name != "stopped"]
    assert len(pieces) == len(set(pieces)) > 6
    assert len(written) > len(pieces) + 2
    assert tree(tmp_path / "stopped") == reference


DRIVER = """
import sys
from openalbert.cli import main
from openalbert.text import source_groups
if __name__ == "__main__":
    source_groups.BLOCK_CHARACTERS, source_groups.GROUP_BYTES = 6_000, 120_000
    main(sys.argv[1:])
"""


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []


def train_state(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("workers", "kills"), [(1, 4), (2, 3), pytest.param(3, 40, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_run_again_it_ends_with_the_same_bytes(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, workers: int, kills: int
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    common = [*files, "--tokenizer", str(vocabulary), "--drop-duplicates", "--heldout", "0.1", "--shard-tokens", "1"]

    def start(out: str) -> subprocess.Popen[bytes]:
        words = [
            sys.executable,
            str(script),
            "prepare",
            *common,
            "--workers",
            str(workers),
            "--out",
            str(tmp_path / out),
        ]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pieces() -> int:
        return len(list(out.glob("shards/*-?????")))

    assert start("whole").wait(timeout=120) == 0
    dice = random.Random(workers)
    out = tmp_path / "killed"
    kills_at: list[int] = []
    while len(kills_at) < kills:
        run = start("killed")
        # Let it come a little further than the last time, then kill it in the middle of something.
        enough = pieces() + dice.randint(0, 20 // kills + 1)
        while run.poll() is None and pieces() < enough:
            time.sleep(0.002)
        time.sleep(dice.random() * 0.03)
        workers_of_run = children(run.pid)
        run.send_signal(signal.SIGKILL)
        if run.wait() == 0:  # done before the kill, on a fast machine: this one is compared, and the next begun
            assert tree(out) == tree(tmp_path / "whole")
            shutil.rmtree(out)
            continue
        kills_at.append(pieces())
        until = time.monotonic() + 10
        while any(map(train_state, workers_of_run)):
            assert time.monotonic() < until, "a worker lives on after its parent was killed"
            time.sleep(0.01)
        with pytest.raises(UserError, match=r"not finished|no shards here"):
            open_shards(out)
    assert len(set(kills_at)) >= 2
    assert start("killed").wait(timeout=120) == 0
    assert tree(out) == tree(tmp_path / "whole")


def test_a_finished_folder_is_left_alone_and_other_settings_or_texts_are_refused(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("One sentence. Another one.\n\nA second document.")
    asked = Prepare((str(text),), vocabulary, tmp_path / "s", workers=1)
    prepare(asked)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    prepare(asked)
    assert "already done" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}

    with pytest.raises(UserError, match=r"made with heldout 0\.0, not 0\.5: give another --out, or .* --fresh"):
        prepare(dataclasses.replace(asked, heldout=0.5))
    other = made_text.write_vocabulary(tmp_path / "other", seed=9)
    with pytest.raises(UserError, match="made with another tokenizer"):
        prepare(dataclasses.replace(asked, tokenizer=other))
    (tmp_path / "b.txt").write_text("More.")
    with pytest.raises(UserError, match=r"made from other texts \(.*b.txt is new or has changed"):
        prepare(dataclasses.replace(asked, files=(str(text), str(tmp_path / "b.txt"))))
    once = Prepare((str(text), str(tmp_path / "b.txt")), vocabulary, tmp_path / "two", workers=1)
    prepare(once)
    with pytest.raises(UserError, match="the list of files"):
        prepare(dataclasses.replace(once, files=(str(text),)))
    text.write_text("One sentence. Another one.\n\nA second d0cument.")
    with pytest.raises(UserError, match=r"made from other texts \(.*a.txt is new or has changed"):
        prepare(asked)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    prepare(dataclasses.replace(asked, fresh=True))
    assert read_manifest(tmp_path / "s").counts["train_documents"] == 2


def test_a_finished_folder_that_has_lost_a_file_is_not_called_done(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text("One sentence. Another one.")
    asked = Prepare((str(tmp_path / "a.txt"),), vocabulary, tmp_path / "s", workers=1)
    prepare(asked)
    (tmp_path / "s/shards/00000-00000/train.tokens.npy").unlink()
    with pytest.raises(UserError, match=r"train.tokens.npy: missing, .* prepare the text again with --fresh"):
        prepare(asked)
    prepare(dataclasses.replace(asked, fresh=True))
    verify(Verify(tmp_path / "s"))


def test_a_corrected_command_needs_no_fresh_start_where_nothing_was_made(tmp_path: Path, vocabulary: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("id,review\n1,A good day. A long night.\n2,So it goes. And so it went.\n")
    asked = Prepare((str(table),), vocabulary, tmp_path / "mine", workers=1)
    with pytest.raises(UserError, match="no column 'text'"):
        prepare(asked)
    prepare(dataclasses.replace(asked, reading=CorpusReading(text_field="review")))
    assert read_manifest(tmp_path / "mine").counts["train_documents"] == 2
    with pytest.raises(UserError, match="give another --out"):
        prepare(asked)


def test_a_fresh_start_takes_the_picture_of_the_old_shards_away_and_leaves_what_others_put_there(
    tmp_path: Path, vocabulary: Path
) -> None:
    (tmp_path / "a.txt").write_text("One sentence. Another one.")
    asked = Prepare((str(tmp_path / "a.txt"),), vocabulary, tmp_path / "s", workers=1)
    prepare(asked)
    for name in ("inspect.png", "my-notes.txt"):
        (tmp_path / "s" / name).touch()
    prepare(dataclasses.replace(asked, heldout=0.5, fresh=True))
    verify(Verify(tmp_path / "s"))
    assert read_manifest(tmp_path / "s").settings["heldout"] == 0.5
    assert not (tmp_path / "s" / "inspect.png").exists()
    assert (tmp_path / "s" / "my-notes.txt").exists()


def test_a_text_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("One sentence. Another one.")
    write_piece = shards.write_piece

    def change(*given: object) -> shards.Piece:
        text.write_text("One sentence. Another one. A third one.")
        return write_piece(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "write_piece", change)
    with pytest.raises(UserError, match="changed while they were read"):
        prepare(Prepare((str(text),), vocabulary, tmp_path / "s", workers=1))
    with pytest.raises(UserError, match="not finished"):
        open_shards(tmp_path / "s")


def test_a_file_is_not_taken_for_the_folder_to_make(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    with pytest.raises(UserError, match=r"a.txt is not a folder: give another name"):
        prepare(Prepare((str(tmp_path / "a.txt"),), vocabulary, tmp_path / "a.txt", workers=1))


def test_a_folder_with_something_else_in_it_is_never_written_to(tmp_path: Path, vocabulary: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("A text.")
    (tmp_path / "mine" / "shards").mkdir(parents=True)
    for fresh in (False, True):
        with pytest.raises(UserError, match=r"mine: there is something else here \(shards\)"):
            prepare(Prepare((str(text),), vocabulary, tmp_path / "mine", workers=1, fresh=fresh))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["shards"]


def test_two_runs_in_one_folder_do_not_mix(tmp_path: Path, vocabulary: Path) -> None:
    import fcntl

    text = tmp_path / "a.txt"
    text.write_text("A text.")
    (tmp_path / "s").mkdir()
    descriptor = os.open(tmp_path / "s", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another `openalbert prepare` is at work here"):
        prepare(Prepare((str(text),), vocabulary, tmp_path / "s", workers=1))
    os.close(descriptor)


@pytest.mark.usefixtures("small_cuts")
def test_a_full_disk_gives_a_sentence_and_the_next_run_goes_on(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Prepare(files, vocabulary, tmp_path / "whole", shard_tokens=10_000, workers=1)
    prepare(asked)
    asked = dataclasses.replace(asked, out=tmp_path / "full")
    write_array = shards._write_array
    room = iter(range(7))

    def fill_up(path: Path, chunks: object) -> tuple[int, str]:
        if next(room, None) is None:
            path.write_bytes(b"a part of it")
            raise OSError(28, "No space left on device")
        return write_array(path, chunks)  # type: ignore[arg-type]

    monkeypatch.setattr(shards, "_write_array", fill_up)
    with pytest.raises(UserError, match=r"full: the disk is full \(No space left on device\): make room there and run"):
        prepare(asked)
    with pytest.raises(UserError, match="not finished"):
        open_shards(tmp_path / "full")
    assert len(list((tmp_path / "full").glob("shards/*"))) == 2
    monkeypatch.setattr(shards, "_write_array", write_array)
    prepare(asked)
    assert tree(tmp_path / "full") == tree(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_a_disk_that_is_really_full_gives_a_sentence_and_the_next_run_goes_on(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this system lets nobody make a small disk")
    try:
        words = ["prepare", *files, "--tokenizer", str(vocabulary), "--out", str(disk / "s"), "--workers", "2"]
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 1
        assert "the disk is full" in capsys.readouterr().err
        assert not list(disk.glob("s/shards/*/tokens.npy"))
        with pytest.raises(UserError, match="not finished"):
            open_shards(disk / "s")
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        main(words)
        main(["verify", str(disk / "s")])
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.usefixtures("small_cuts")
def test_a_piece_damaged_between_two_runs_is_made_again(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path
) -> None:
    asked = Prepare(files, vocabulary, tmp_path / "s", shard_tokens=10_000, workers=1)
    prepare(asked)
    reference = tree(tmp_path / "s")
    (tmp_path / "s" / "manifest.json").unlink()
    (tmp_path / "s" / "shards/00000-00001/train.tokens.npy").write_bytes(b"short")
    prepare(asked)
    assert tree(tmp_path / "s") == reference


def test_verify_names_the_files_with_a_flipped_bit(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s"
    prepare(Prepare(files, vocabulary, out, heldout=0.1, workers=1))
    verify(Verify(out))
    assert "every bit is as it was written" in capsys.readouterr().out
    for name in tree(out):
        data = bytearray((out / name).read_bytes())
        data[len(data) // 2] ^= 4
        (out / name).write_bytes(data)
        with pytest.raises(UserError, match=re.escape(name)):
            verify(Verify(out))
        data[len(data) // 2] ^= 4
        (out / name).write_bytes(data)
    (out / "tokenizer/spiece.model").unlink()
    with pytest.raises(UserError, match=r"1 of \d+ files are not as they were written: tokenizer/spiece.model"):
        verify(Verify(out))


def test_standard_input_is_read_once_and_never_gone_on_with(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Prepare(("-",), vocabulary, tmp_path / "s", workers=2)
    (tmp_path / "input").write_text("One text. It ends.\n\nTwo.")
    with (tmp_path / "input").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        prepare(asked)
    assert len(read_back(tmp_path / "s")) == 2
    with pytest.raises(UserError, match="work on standard input cannot be resumed"):
        prepare(asked)
    with pytest.raises(UserError, match="cannot be read twice"):
        prepare(dataclasses.replace(asked, drop_duplicates=True))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"heldout": 1.0}, "heldout is 1.0"),
        ({"heldout": -0.1}, "heldout is -0.1"),
        ({"shard_tokens": 0}, "shard_tokens is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"tokenizer": Path("nowhere")}, "nowhere.* does not exist"),
        ({"files": ("nowhere.txt",)}, "there is no file nowhere.txt"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, changed: dict[str, object], sentence: str
) -> None:
    asked = dataclasses.replace(Prepare(files, vocabulary, tmp_path / "s"), **changed)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence):
        prepare(asked)
    assert not (tmp_path / "s").exists()


def test_empty_junk_and_giant_inputs_each_get_a_sentence_and_no_shards(tmp_path: Path, vocabulary: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n \n")
    (tmp_path / "junk.txt").write_bytes(random.Random(1).randbytes(100_000))
    for name, words in (("empty", "empty"), ("blank", "there is no text in"), ("junk", "not UTF-8 text")):
        for workers in (1, 2):
            with pytest.raises(UserError, match=words):
                prepare(Prepare((str(tmp_path / f"{name}.txt"),), vocabulary, tmp_path / name, workers=workers))
            with pytest.raises(UserError, match=r"no shards here|not finished"):
                open_shards(tmp_path / name)


def test_one_giant_line_is_cut_into_documents_and_counted(tmp_path: Path, vocabulary: Path) -> None:
    line = " ".join(made_text.documents(400_000, 3)).replace("\n", " ")
    (tmp_path / "line.txt").write_text(line)
    reading = CorpusReading(max_document_characters=100_000)
    prepare(Prepare((str(tmp_path / "line.txt"),), vocabulary, tmp_path / "s", reading=reading, workers=1))
    assert len(read_back(tmp_path / "s")) >= 4
    tokens = Tokenizer.load(vocabulary).encode(line)
    assert abs(open_shards(tmp_path / "s").num_tokens - len(tokens)) < 10
    assert read_manifest(tmp_path / "s").counts["characters"] > 0.99 * len(line)


def test_everything_dropped_is_counted_and_said(
    tmp_path: Path, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        '{"text": "One. Two."}',
        '{"text": ""}',
        "{broken",
        '{"other": 1}',
        '{"text": "One. Two."}',
        '{"text": "\\u0001x."}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    prepare(Prepare((str(tmp_path / "a.jsonl"),), vocabulary, tmp_path / "s", drop_duplicates=True, workers=1))
    said = capsys.readouterr().out
    for remark in (
        "1 empty documents dropped",
        "1 duplicate documents dropped",
        "1 JSON lines or table rows dropped because they are broken or too long (the first: "
        f"{tmp_path / 'a.jsonl'}, line 3)",
        "1 records dropped because they have no text",
        "1 documents of one sentence kept: no sentence pair",
    ):
        assert remark in said
    counts = read_manifest(tmp_path / "s").counts
    assert set(counts) >= {field.name for field in dataclasses.fields(Counts) if field.type is int}


def test_progress_tells_the_rate_and_the_time_left(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(Prepare(files, vocabulary, tmp_path / "s", workers=1))
    assert re.search(r"preparing: .* MB \(.* MB/s\), \d+ s, 0 s left, .* million characters/s", capsys.readouterr().err)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_search_for_duplicates_in_one_big_file_shows_how_far_it_is(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(made_text.documents(3_000_000, 1)))
    monkeypatch.setattr("openalbert.progress.SECONDS_BETWEEN_LINES", 0.0)
    prepare(Prepare((str(text),), vocabulary, tmp_path / "s", drop_duplicates=True, workers=workers))
    amounts = re.findall(r"looking for duplicates: ([\d.]+)/", capsys.readouterr().err)
    assert len(set(amounts)) > 2
    assert float(amounts[-1]) == pytest.approx(text.stat().st_size / 1e6, abs=0.06)


def test_a_worker_that_is_killed_gives_a_sentence(
    tmp_path: Path, files: tuple[str, ...], vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openalbert.text.workers.encode", _die)
    with pytest.raises(UserError, match="a worker process was killed"):
        prepare(Prepare(files, vocabulary, tmp_path / "s", workers=2))


def _die(texts: list[str], job: source_groups.Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_real_text_comes_back_as_sentencepiece_encodes_it(tmp_path: Path, real_data: Path) -> None:
    files = tuple(str(real_data / "corpus" / f"heldout-{kind}.txt") for kind in ("wikipedia", "books"))
    for workers in (1, 2):
        prepare(Prepare(files, real_data / "vocab", tmp_path / str(workers), shard_tokens=300_000, workers=workers))
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
    tokenizer = Tokenizer.load(real_data / "vocab")
    found = read_back(tmp_path / "1")
    assert len(found) == 105
    first = next(corpus.documents(corpus.sources(files, CorpusReading())[0], CorpusReading(), Counts()))
    assert found[0] == [tokenizer.encode(sentence) for sentence in split_sentences(first)]
