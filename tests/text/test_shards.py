"""Shards: what is written is what is read, and nothing damaged, foreign or unfinished passes for whole."""

import hashlib
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.written_shards import write_shards

from openalbert.errors import UserError
from openalbert.text import shards
from openalbert.text.shards import VocabularyInfo, open_shards, problems, read_manifest

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCABULARY = VocabularyInfo("f" * 64, 30_000, SPECIAL)
DOCUMENTS = [[[5, 6, 7], [8]], [[9, 10]], [[11], [12, 13], [29_999]]]


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path / "s", {"train": DOCUMENTS, "heldout": [[[7, 7], [8]]]}, VOCABULARY, shard_tokens=5)
    return tmp_path / "s"


def documents_in(opened: shards.ShardSet) -> list[list[list[int]]]:
    found = []
    for shard in opened.shards:
        for d in range(len(shard.document_starts) - 1):
            sentences = range(shard.document_starts[d], shard.document_starts[d + 1])
            starts = shard.sentence_starts
            found.append([shard.tokens[starts[s] : starts[s + 1]].tolist() for s in sentences])
    return found


def test_documents_come_back_as_they_went_in(folder: Path) -> None:
    train = open_shards(folder)
    assert documents_in(train) == DOCUMENTS
    assert documents_in(open_shards(folder, "heldout")) == [[[7, 7], [8]]]
    assert [len(shard.tokens) for shard in train.shards] == [6, 4]
    assert train.num_tokens == 10
    assert train.shards[-1].tokens[-1] == 29_999
    assert train.shards[0].tokens.dtype == np.uint16


sentence = st.lists(st.integers(0, 99_999), min_size=1, max_size=6)
document = st.lists(sentence, min_size=1, max_size=4)


@settings(deadline=None, max_examples=50)
@given(documents=st.lists(document, min_size=1, max_size=8), shard_tokens=st.integers(1, 30))
def test_any_documents_come_back_for_any_size_of_shard(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    write_shards(folder, {"train": documents}, VocabularyInfo("a", 100_000, SPECIAL), shard_tokens)
    opened = open_shards(folder)
    assert documents_in(opened) == documents
    assert opened.manifest.dtype == "uint32"
    for entry, shard in zip(opened.entries, opened.shards, strict=True):
        assert entry.tokens == len(shard.tokens) == shard.sentence_starts[-1]
        assert entry.sentences == len(shard.sentence_starts) - 1 == shard.document_starts[-1]
        assert entry.documents == len(shard.document_starts) - 1


def test_sixteen_bits_are_used_up_to_the_last_id_they_can_hold(tmp_path: Path) -> None:
    assert VocabularyInfo("a", 65_536, SPECIAL).dtype == "uint16"
    assert VocabularyInfo("a", 65_537, SPECIAL).dtype == "uint32"
    write_shards(tmp_path, {"train": [[[65_535]]]}, VocabularyInfo("a", 65_536, SPECIAL))
    assert documents_in(open_shards(tmp_path)) == [[[65_535]]]


def test_the_files_are_plain_numpy_and_the_checksums_are_plain_sha256(folder: Path) -> None:
    assert np.load(folder / "shards/00000-00000/train.tokens.npy").tolist() == [5, 6, 7, 8, 9, 10]
    for entry in read_manifest(folder).files:
        data = (folder / entry.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)


def test_more_shards_than_can_be_open_at_once_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MAX_OPEN_SHARDS", 2)
    write_shards(tmp_path, {"train": [[[i]] for i in range(9)]}, VOCABULARY, shard_tokens=1)
    opened = open_shards(tmp_path)
    assert [int(opened.shards[i].tokens[0]) for i in (8, 0, 5, 8, 3, 3, 1)] == [8, 0, 5, 8, 3, 3, 1]
    with pytest.raises(IndexError):
        opened.shards[9]


def test_a_data_worker_can_be_handed_the_shards(folder: Path) -> None:
    assert documents_in(pickle.loads(pickle.dumps(open_shards(folder)))) == DOCUMENTS


def test_every_flipped_bit_is_found(folder: Path) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(paths) > 9
    for path in paths:
        data = path.read_bytes()
        for position in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            for bit in (0, 5):
                damaged = bytearray(data)
                damaged[position] ^= 1 << bit
                path.write_bytes(damaged)
                if path.name == "manifest.json":
                    with pytest.raises(UserError, match=re.escape("manifest.json")):
                        read_manifest(folder)
                else:
                    wrong = [name for name, what in problems(folder, read_manifest(folder)) if what]
                    assert [entry.name for entry in wrong] == [path.relative_to(folder).as_posix()]
        path.write_bytes(data)
    assert not any(what for _, what in problems(folder, read_manifest(folder)))


def test_a_missing_or_shortened_shard_is_refused_when_it_is_opened(folder: Path) -> None:
    path = folder / "shards/00000-00001/train.tokens.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-2])
    with pytest.raises(UserError, match=r"00000-00001/train.tokens.npy: has \d+ bytes but the manifest says \d+"):
        open_shards(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"train.tokens.npy: missing"):
        open_shards(folder)


def test_a_shard_of_another_type_is_refused_though_its_size_is_right(folder: Path) -> None:
    path = folder / "shards/00000-00000/train.tokens.npy"
    path.write_bytes(path.read_bytes().replace(b"<u2", b"<i2"))
    with pytest.raises(UserError, match="6 numbers of type uint16 but the file holds 6 of type int16"):
        open_shards(folder).shards[0]


def test_a_split_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path, {"train": DOCUMENTS}, VOCABULARY)
    with pytest.raises(UserError, match="no split 'heldout' in these shards: known are: train"):
        open_shards(tmp_path, "heldout")


def test_a_manifest_of_a_newer_format_is_refused(folder: Path) -> None:
    values = json.loads((folder / "manifest.json").read_text()) | {"format": 99, "unheard_of": 1}
    (folder / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"format 99 .* up to 1: update"):
        open_shards(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": "x", "checksum": ""}', "\x00\xff"])
def test_junk_in_place_of_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="not a manifest"):
        read_manifest(tmp_path)


def test_an_unfinished_folder_is_refused_and_says_how_to_go_on(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="no shards here"):
        open_shards(folder)
    (folder / "plan.json").write_text("{}")
    with pytest.raises(UserError, match="not finished: run the same"):
        open_shards(folder)


def test_a_vocabulary_that_does_not_fit_the_shards_is_refused(folder: Path) -> None:
    opened = open_shards(folder)
    opened.check_vocabulary("f" * 64, 30_000)
    with pytest.raises(UserError, match="of 30000 pieces, not with eeeeeeeeeeee of 30000: use the vocabulary in"):
        opened.check_vocabulary("e" * 64, 30_000)
    with pytest.raises(UserError, match="of 20000"):
        opened.check_vocabulary("f" * 64, 20_000)


def test_a_piece_that_fails_half_way_leaves_nothing_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, chunks: object) -> tuple[int, str]:
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "_write_array", full)
    with pytest.raises(OSError, match="No space"):
        write_shards(tmp_path, {"train": DOCUMENTS}, VOCABULARY)
    assert shards.read_piece(tmp_path, shards.piece_name(0, 0)) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
