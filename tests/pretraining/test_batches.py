from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pretraining.made_shards import made_shards

from openalbert.errors import UserError
from openalbert.objectives.ngram_masking import NgramMasking
from openalbert.objectives.sentence_order import SentenceOrder
from openalbert.pretraining.batches import Batches, Objective, PretrainingBatch
from openalbert.settings import from_json, to_json
from openalbert.text.shards import ShardSet, open_shards
from openalbert.text.tokenizer import Tokenizer

SHORT = Objective(max_length=64)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return open_shards(made_shards(tmp_path_factory.mktemp("shards")))


def assert_same(one: PretrainingBatch, other: PretrainingBatch) -> None:
    for field in fields(PretrainingBatch):
        assert torch.equal(getattr(one, field.name).cpu(), getattr(other, field.name).cpu()), field.name


def joined(parts: list[PretrainingBatch]) -> PretrainingBatch:
    return PretrainingBatch(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(PretrainingBatch)))


def original(batch: PretrainingBatch) -> list[list[int]]:
    """The examples before tokens were hidden, without padding."""
    ids = batch.ids.scatter(1, batch.positions, torch.where(batch.valid, batch.labels, batch.ids[:, :1]))
    return [row[:length] for row, length in zip(ids.tolist(), batch.lengths.tolist(), strict=True)]


def test_the_made_up_shards_are_several(shards: ShardSet) -> None:
    assert len(shards.entries) > 3


def test_examples_are_text_of_the_shards(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=32, seed=3)
    texts = [shard.tokens.tolist() for shard in shards.shards]
    for step in range(3):
        batch = batches.at(step)
        assert batch.ids.shape == (32, 64)
        assert batch.positions.shape == (32, SHORT.num_predictions)
        assert bool((batch.ids[~batch.mask] == 0).all())
        for row, ids in enumerate(original(batch)):
            first_end = ids.index(3)
            first, second = ids[1:first_end], ids[first_end + 1 : -1]
            assert (ids[0], ids[-1]) == (2, 3)
            assert batch.segments[row].tolist() == [0] * (first_end + 1) + [1] * (len(second) + 1) + [0] * (
                64 - len(ids)
            )
            place = [
                (number, begin)
                for number, text in enumerate(texts)
                for begin in range(len(text) - len(first) + 1)
                if text[begin : begin + len(first)] == first
            ]
            assert place
            text = texts[place[0][0]]
            if len(first) > 5 and len(second) > 5 and len(place) == 1:
                there = "".join(f",{token}" for token in text)
                positions = [there.index("".join(f",{token}" for token in part)) for part in (first, second)]
                assert bool(batch.swapped[row]) == (positions[0] > positions[1])


def test_an_epoch_holds_every_example_once(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=8, seed=3)
    count = batches.examples_per_epoch
    seen = [tuple(ids) for ids in original(batches.examples(np.arange(count)))]
    rows = batches.plan(0).rows
    expected = rows["first_length"] + rows["second_length"] + 3
    assert sorted(map(len, seen)) == sorted(expected.tolist())
    assert len(set(seen)) == count
    # The order is not that of the text.
    assert [len(ids) for ids in seen] != expected.tolist()


@given(step=st.integers(0, 200), world=st.sampled_from([1, 2, 3, 4]), micro_batches=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_batches_do_not_depend_on_ranks_and_micro_batches(
    shards: ShardSet, step: int, world: int, micro_batches: int
) -> None:
    batches = Batches(shards, SHORT, batch_size=48, seed=1)
    split = [batches.at(step, rank, world, n, micro_batches) for rank in range(world) for n in range(micro_batches)]
    assert_same(joined(split), batches.at(step))


def test_any_step_can_be_had_first(shards: ShardSet) -> None:
    # Step 40 lies some epochs on: a run that starts there sees what a run that comes there sees.
    train_state = Batches(shards, SHORT, batch_size=32, seed=5)
    for step in range(40):
        train_state.at(step)
    assert train_state.epoch_of(40) > 2
    assert_same(Batches(shards, SHORT, batch_size=32, seed=5).at(40), train_state.at(40))


def test_resident_tokens_give_the_same_batches(shards: ShardSet) -> None:
    fetched = Batches(shards, SHORT, batch_size=40, seed=2)
    resident = Batches(shards, SHORT, batch_size=40, seed=2, resident=True)
    for step in (0, 1, 9):
        assert_same(fetched.at(step), resident.at(step))


def test_the_stream_is_what_at_gives_step_by_step(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=24, seed=2)
    streamed = list(batches.stream(start=5, stop=12, rank=1, world=2, micro_batches=3))
    assert len(streamed) == 7
    for step, parts in zip(range(5, 12), streamed, strict=True):
        assert_same(joined(parts), batches.at(step, rank=1, world=2))


def test_a_stream_can_be_left_and_fails_where_its_thread_fails(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=24, seed=2)
    endless = batches.stream()
    next(endless)
    endless.close()
    with pytest.raises(UserError, match="does not divide"):
        next(batches.stream(world=5))


def test_epochs_and_seeds_differ(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=16, seed=2)
    other = Batches(shards, SHORT, batch_size=16, seed=3)
    again = batches.examples(np.arange(16) + batches.examples_per_epoch)
    assert not torch.equal(batches.at(0).ids, other.at(0).ids)
    assert not torch.equal(batches.at(0).ids, again.ids)


def test_batches_larger_than_an_epoch_continue_into_the_next(shards: ShardSet) -> None:
    small = Batches(shards, SHORT, batch_size=8, seed=2)
    size = 8 * (small.examples_per_epoch // 8 + 3)
    large = Batches(shards, SHORT, batch_size=size, seed=2).at(1)
    assert_same(large, small.examples(np.arange(size, 2 * size)))


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
def test_labels_fit_the_objective(tmp_path: Path, objective: str) -> None:
    one_shard = open_shards(made_shards(tmp_path, shard_tokens=1 << 20))
    how = Objective(max_length=64, sentence_order=SentenceOrder(objective))  # type: ignore[arg-type]
    batch = Batches(one_shard, how, batch_size=200, seed=0).at(0)
    share = float(batch.swapped.float().mean())
    assert share == 0 if objective == "none" else abs(share - 0.5) < 5 * 0.5 / np.sqrt(200)


def test_text_without_pairs_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = made_shards(tmp_path, text="\n\n".join(["kalo minu persta."] * 3 + ["vorbel dragos."]) + "\n")
    with pytest.raises(UserError, match=r"two sentences .*objective none"):
        Batches(open_shards(folder), SHORT, batch_size=2, seed=0)


@pytest.mark.parametrize("resident", [True, False])
def test_documents_of_one_sentence_are_examples_of_one_segment_where_nothing_is_asked(
    tmp_path: Path, resident: bool
) -> None:
    lines = [f"{syllable} minu persta vorbel." for syllable in ("Kalo", "Dragos", "Hintul")] + ["Wex " * 40 + "."]
    shards = open_shards(made_shards(tmp_path, text="\n\n".join(lines) + "\n"))
    how = Objective(max_length=32, sentence_order=SentenceOrder("none"))
    batches = Batches(shards, how, batch_size=4, seed=0, resident=resident)
    tokenizer = Tokenizer.load(shards.tokenizer_folder)
    assert (batches.examples_per_epoch, batches.unusable_documents, batches.unusable_tokens) == (4, 0, 0)
    batch = batches.at(0)
    assert not bool(batch.segments.any())
    assert batch.lengths.max() == 32  # the long one fills the example: a [SEP] less, a token more
    texts = [tokenizer.encode(line) for line in lines]
    for ids in original(batch):
        assert (ids[0], ids[-1], ids.count(3)) == (2, 3, 1)
        assert ids[1:-1] in texts[:3] or " ".join(map(str, ids[1:-1])) in " ".join(map(str, texts[3]))
    assert len({tuple(ids) for ids in original(batch)}) == 4


def test_a_batch_that_does_not_divide_is_refused(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=10, seed=0)
    with pytest.raises(UserError, match="3 ranks of 1"):
        batches.at(0, world=3)
    with pytest.raises(UserError, match="at least 1"):
        Batches(shards, SHORT, batch_size=0, seed=0)


def test_a_batch_is_whole_unless_a_part_of_it_is_asked_for(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=12, seed=2)
    assert batches.numbers(3).tolist() == list(range(36, 48))
    streamed = list(batches.stream(stop=2))
    assert [len(of_step) for of_step in streamed] == [1, 1]
    for step, (batch,) in enumerate(streamed):
        assert_same(batch, batches.examples(np.arange(12 * step, 12 * (step + 1))))


def test_the_plans_of_the_epochs_beside_the_last_are_kept_and_no_others(shards: ShardSet) -> None:
    batches = Batches(shards, SHORT, batch_size=12, seed=2)
    plans = [batches.plan(epoch) for epoch in range(4)]  # batches that lie across two epochs ask for both in turn
    assert batches.plan(3) is plans[3]
    assert batches.plan(2) is plans[2]
    again = batches.plan(0)
    assert again is not plans[0]
    assert np.array_equal(again.rows, plans[0].rows)


def test_a_batch_on_another_device_is_whole(shards: ShardSet) -> None:
    batch = Batches(shards, SHORT, batch_size=12, seed=2).at(0)
    assert_same(batch.to("cpu"), batch)
    moved = batch.to("meta")
    for field in fields(PretrainingBatch):
        there, here = getattr(moved, field.name), getattr(batch, field.name)
        assert (there.device.type, there.shape, there.dtype) == ("meta", here.shape, here.dtype)


def test_what_batches_are_made_with_lies_on_their_device(shards: ShardSet) -> None:
    assert Batches(shards, SHORT, batch_size=12, seed=2, device="meta").word_starts.device.type == "meta"


@pytest.mark.parametrize(("bytes_too_few", "expected"), [(0, True), (20, False)])
def test_tokens_go_to_a_gpu_where_they_take_at_most_a_tenth_of_its_free_memory(
    shards: ShardSet, monkeypatch: pytest.MonkeyPatch, bytes_too_few: int, expected: bool
) -> None:
    size = sum(shard.tokens.nbytes for shard in shards.shards)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * size - bytes_too_few, 10**12))
    batches = Batches(shards, SHORT, batch_size=12, seed=2)
    assert not batches._is_resident(None)  # a CPU has them in its memory anyway
    batches.device = torch.device("cuda")
    assert batches._is_resident(None) is expected
    assert batches._is_resident(True)
    assert not batches._is_resident(False)


def test_the_shortest_example_is_a_token_in_each_segment(shards: ShardSet) -> None:
    batch = Batches(shards, Objective(max_length=5), batch_size=12, seed=2).at(0)
    assert batch.lengths.tolist() == [5] * 12
    assert all((ids[0], ids[2], ids[4]) == (2, 3, 3) for ids in original(batch))


def test_too_short_a_length_is_refused() -> None:
    with pytest.raises(UserError, match="max_length is 4"):
        Objective(max_length=4)


def test_objectives_come_back_equal_from_json() -> None:
    objective = Objective(128, NgramMasking(max_predictions=20), SentenceOrder("nsp", lone_sentences="google"))
    assert from_json(to_json(objective), Objective) == objective


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_makes_the_same_batches(shards: ShardSet, resident: bool) -> None:
    on_cpu = Batches(shards, SHORT, batch_size=24, seed=2)
    on_gpu = Batches(shards, SHORT, batch_size=24, seed=2, device="cuda", resident=resident)
    for step, (batch,) in zip(range(6), on_gpu.stream(), strict=False):
        assert_same(batch, on_cpu.at(step))
