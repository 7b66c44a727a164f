import contextlib
import os
import random
import re
import runpy
import shutil
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.interop.google.bundle_writer import (
    TYPES,
    block,
    entry,
    header,
    masked_crc,
    message,
    number,
    table,
    varint,
    write_bundle,
)

from openalbert.errors import UserError
from openalbert.interop.google.tensor_bundle import TensorBundle

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "google"
MAKE = runpy.run_path(str(GOLDEN / "make.py"))
PREFIX = MAKE["PREFIX"]
FLOAT32 = TYPES["float32"]


def everything(bundle: TensorBundle) -> dict[str, bytes]:
    """All that can be read, as bytes, together with shapes and types."""
    return {
        name: repr((found.dtype, found.shape)).encode() + bundle.read(name).tobytes()
        for name, found in bundle.entries.items()
        if found.dtype is not None and not found.num_slices
    }


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A copy of the small checkpoint in two shards, to be broken."""
    return Path(shutil.copytree(GOLDEN / "kinds", tmp_path / "kinds"))


@pytest.fixture
def index_of(tmp_path: Path):
    """Writes an index with the records given (and an empty data file), and opens it."""

    def open_index(*records: tuple[bytes, bytes], **more: int) -> TensorBundle:
        (tmp_path / "made.index").write_bytes(table(list(records), **more))
        (tmp_path / "made.data-00000-of-00001").write_bytes(b"")
        return TensorBundle.open(tmp_path / "made")

    return open_index


@pytest.mark.parametrize("name", MAKE["models"]())
def test_every_tensor_that_tensorflow_wrote_is_read_exactly(name: str) -> None:
    _, _, shapes = MAKE["models"]()[name]
    bundle = TensorBundle.open(GOLDEN / name)
    assert set(bundle.entries) == {*shapes, "global_step"}
    assert bundle.read("global_step").item() == 125000
    for variable, shape in shapes.items():
        found = bundle.read(variable)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, MAKE["values"](variable, shape))


def test_all_types_in_two_shards_are_read_exactly() -> None:
    bundle = TensorBundle.open(GOLDEN / "kinds")
    numbers = MAKE["values"]("numbers", (4, 3))
    assert {found.shard for found in bundle.entries.values()} == {0, 1}
    for kind in ("float16", "float32", "float64"):
        assert bundle.read(kind).dtype == np.dtype(kind)
        np.testing.assert_array_equal(bundle.read(kind), numbers.astype(kind))
    for kind in ("int32", "int64"):
        assert bundle.read(kind).dtype == np.dtype(kind)
        np.testing.assert_array_equal(bundle.read(kind), (numbers * 100).astype(kind))
    widened = torch.from_numpy(numbers).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(bundle.read("bfloat16"), widened)
    assert bundle.entries["bfloat16"].dtype == np.float32
    assert bundle.entries["bfloat16"].stored == "bfloat16"
    assert bundle.read("empty").shape == (0, 5)
    assert bundle.read("scalar").shape == ()
    assert bundle.read("scalar").item() == 0.5


def test_what_is_read_may_be_written_to() -> None:
    bundle = TensorBundle.open(GOLDEN / "kinds")
    assert all(bundle.read(kind).flags.writeable for kind in ("float32", "bfloat16", "scalar"))


@pytest.mark.parametrize("end", ["", f"/{PREFIX}", f"/{PREFIX}.index", f"/{PREFIX}.data-00001-of-00002"])
def test_a_checkpoint_is_found_by_its_prefix_its_files_and_its_folder(end: str) -> None:
    bundle = TensorBundle.open(Path(f"{GOLDEN / 'kinds'}{end}"))
    assert bundle.prefix == GOLDEN / "kinds" / PREFIX
    assert bundle.read("scalar").item() == 0.5


def test_a_folder_must_hold_exactly_one_checkpoint(kinds: Path, tmp_path: Path) -> None:
    shutil.copy(kinds / f"{PREFIX}.index", kinds / "another.index")
    with pytest.raises(UserError, match=r"another\.index, model\.ckpt-best\.index"):
        TensorBundle.open(kinds)
    with pytest.raises(UserError, match="found none"):
        TensorBundle.open(tmp_path)


def test_missing_files_are_named(kinds: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.index: no such file"):
        TensorBundle.open(tmp_path / "nothing")
    (kinds / f"{PREFIX}.data-00001-of-00002").unlink()
    bundle = TensorBundle.open(kinds)
    with pytest.raises(UserError, match=r"data-00001-of-00002: no such file: 'float64'"):
        bundle.read("float64")
    assert bundle.read("scalar").item() == 0.5


def test_a_folder_in_place_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.index").mkdir()
    with pytest.raises(UserError, match=r"a\.index: cannot be read"):
        TensorBundle.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("partitioned", "2 slices"),
        ("text", "type string"),
        ("bool", "type number 10"),
        ("absent", "no tensor 'absent'"),
    ],
)
def test_tensors_that_are_not_read_are_refused_by_name(name: str, reason: str) -> None:
    bundle = TensorBundle.open(GOLDEN / "kinds")
    with pytest.raises(UserError, match=f"{name}.*{reason}|{reason}"):
        bundle.read(name)


def test_without_the_crc_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(UserError, match=r'pip install "openalbert\[google\]"'):
        TensorBundle.open(GOLDEN / "kinds")


# Damage. Whatever happens to the files, the values are right or there is a UserError.


def test_a_flipped_bit_anywhere_in_the_index_never_changes_what_is_read(kinds: Path) -> None:
    expected = everything(TensorBundle.open(kinds))
    index = kinds / f"{PREFIX}.index"
    whole = index.read_bytes()
    footer = len(whole) - 48  # the one part without a CRC: each of its bits
    flips = [(position, position % 8) for position in range(footer)]
    flips += [(position, bit) for position in range(footer, len(whole)) for bit in range(8)]
    read = []
    for position, bit in flips:
        broken = bytearray(whole)
        broken[position] ^= 1 << bit
        index.write_bytes(broken)
        with contextlib.suppress(UserError):
            assert everything(TensorBundle.open(kinds)) == expected
            read.append(position)
    # A number may be written with a zero byte more than it needs, and mean the same.
    assert len(read) <= 1
    assert all(position >= footer for position in read)


def test_an_index_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (GOLDEN / "kinds" / f"{PREFIX}.index").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "cut.index").write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.index"):
            TensorBundle.open(tmp_path)


def test_bytes_added_to_an_index_are_refused(kinds: Path) -> None:
    index = kinds / f"{PREFIX}.index"
    whole = index.read_bytes()
    for added in (whole + b"\0", b"\0" + whole, whole + whole, whole[:-48] + b"\0" + whole[-48:]):
        index.write_bytes(added)
        with pytest.raises(UserError):
            TensorBundle.open(kinds)


def test_a_flipped_bit_anywhere_in_the_data_is_refused_for_just_that_tensor(kinds: Path) -> None:
    bundle = TensorBundle.open(kinds)
    readable = {name: found for name, found in bundle.entries.items() if found.dtype and not found.num_slices}
    expected = {name: bundle.read(name).tobytes() for name in readable}
    for shard in (0, 1):
        data = kinds / f"{PREFIX}.data-{shard:05d}-of-00002"
        whole = data.read_bytes()
        for position in range(len(whole)):
            broken = bytearray(whole)
            broken[position] ^= 1 << (position % 8)
            data.write_bytes(broken)
            for name, found in readable.items():
                if found.shard == shard and found.offset <= position < found.offset + found.size:
                    with pytest.raises(UserError, match=f"data-{shard:05d}-of-00002: '{name}' is damaged"):
                        bundle.read(name)
                else:
                    assert bundle.read(name).tobytes() == expected[name]
        data.write_bytes(whole)


def test_data_cut_off_anywhere_is_refused_for_every_tensor_beyond(kinds: Path) -> None:
    bundle = TensorBundle.open(kinds)
    data = kinds / f"{PREFIX}.data-00000-of-00002"
    whole = data.read_bytes()
    for length in range(len(whole)):
        data.write_bytes(whole[:length])
        for name in ("float16", "float32", "int32", "scalar"):
            found = bundle.entries[name]
            if found.offset + found.size > length:
                with pytest.raises(
                    UserError, match=f"'{name}' should end at byte {found.offset + found.size}.*cut off"
                ):
                    bundle.read(name)
            else:
                bundle.read(name)


def test_data_of_another_checkpoint_of_the_same_shapes_is_refused(kinds: Path) -> None:
    write_bundle(kinds / "one", {"x": np.ones(4, np.float32)})
    write_bundle(kinds / "two", {"x": np.zeros(4, np.float32)})
    (kinds / "two.data-00000-of-00001").replace(kinds / "one.data-00000-of-00001")
    with pytest.raises(UserError, match="'x' is damaged"):
        TensorBundle.open(kinds / "one").read("x")


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_of_a_model_checkpoint_is_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "hub", tmp_path / "hub"))
    expected = everything(TensorBundle.open(folder))
    chance = random.Random(seed)
    for name in (f"{PREFIX}.index", f"{PREFIX}.data-00000-of-00001"):
        whole = (folder / name).read_bytes()
        for _ in range(100):
            broken = bytearray(whole)
            for _ in range(chance.choice((1, 2, 8))):
                start = chance.randrange(len(broken))
                end = min(len(broken), start + chance.choice((1, 4, 64)))
                broken[start:end] = chance.randbytes(chance.choice((end - start, end - start, 0, 7)))
            (folder / name).write_bytes(broken)
            with contextlib.suppress(UserError):
                assert everything(TensorBundle.open(folder)) == expected
        (folder / name).write_bytes(whole)


# Hostile files: their CRCs are right, their content is not.


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensors=st.dictionaries(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
        st.lists(st.integers(0, 3), max_size=4),
        max_size=30,
    ),
    num_per_block=st.integers(1, 12),
    kind=st.sampled_from(sorted(TYPES)),
)
def test_any_names_shapes_and_numbers_of_blocks_come_back(
    tensors: dict[str, list[int]], num_per_block: int, kind: str, tmp_path: Path
) -> None:
    arrays = {name: (MAKE["values"](name, tuple(shape)) * 100).astype(kind) for name, shape in tensors.items()}
    write_bundle(tmp_path / "any", arrays, num_per_block)
    bundle = TensorBundle.open(tmp_path / "any")
    assert set(bundle.entries) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(bundle.read(name), array, strict=True)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_signed_index_of_any_content_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    good = [(b"", header()), (b"a/kernel", entry(FLOAT32, (2, 3), 0, 24, 1)), (b"a/other", entry(9, (1,), 24, 8, 1))]
    victim = data.draw(st.integers(0, 2))
    content = bytearray(good[victim][1])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        content[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    good[victim] = (good[victim][0], bytes(content))
    (tmp_path / "made.index").write_bytes(table(good))
    (tmp_path / "made.data-00000-of-00001").write_bytes(bytes(64))
    try:
        bundle = TensorBundle.open(tmp_path / "made")
    except UserError:
        return
    for name in bundle.entries:
        with contextlib.suppress(UserError):
            bundle.read(name)


def one_block(content: bytes, listed: bytes | None = None) -> bytes:
    """An index of one block of any bytes, signed; `listed` is what the list of blocks says of it."""
    listing = block([(b"z", varint(0) + varint(len(content)) if listed is None else listed)])
    file = content + b"\0" + masked_crc(content + b"\0").to_bytes(4, "little")
    handles = b""
    for part in (block([]), listing):
        handles += varint(len(file)) + varint(len(part))
        file += part + b"\0" + masked_crc(part + b"\0").to_bytes(4, "little")
    return file + handles.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60), num_restarts=st.integers(0, 2**32 - 1) | st.integers(0, 3))
def test_a_signed_block_of_any_bytes_is_read_or_refused(content: bytes, num_restarts: int, tmp_path: Path) -> None:
    (tmp_path / "made.index").write_bytes(one_block(content + num_restarts.to_bytes(4, "little")))
    with contextlib.suppress(UserError):
        TensorBundle.open(tmp_path / "made")


HEADER = block([(b"", header())])[:-8]  # the record alone, without the restart points


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (one_block(b"abc"), "a block is too short"),
        (one_block(b"\xff\xff\0\0"), "more restart points than bytes"),
        (one_block(HEADER + b"\x05\x01\x00a" + bytes(4)), "reaches beyond its block"),  # shares more than there is
        (one_block(HEADER + b"\x00\x01\x7fa" + bytes(4)), "reaches beyond its block"),  # a value beyond the end
        (one_block(HEADER + b"\x00" + bytes(4)), "a number has no end"),
        (one_block(HEADER + bytes(4), listed=varint(1) + varint(3)), "do not follow one another"),
        (one_block(HEADER + bytes(4), listed=varint(0) + varint(len(HEADER) + 4) + b"\0"), "do not follow one another"),
        (one_block(HEADER + bytes(4), listed=varint(0) + varint(2**63)), "reaches beyond its end"),
    ],
)
def test_a_signed_block_that_cannot_be_is_refused_with_its_reason(file: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "made.index").write_bytes(file)
    with pytest.raises(UserError, match=re.compile(rf"made\.index: .*{reason}")):
        TensorBundle.open(tmp_path / "made")


def test_a_signed_block_that_can_be_is_read(tmp_path: Path) -> None:
    (tmp_path / "made.index").write_bytes(one_block(HEADER + bytes(4)))
    assert TensorBundle.open(tmp_path / "made").entries == {}


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "does not begin with the bundle's header"),
        ([(b"a", entry(FLOAT32, (1,), 0, 4, 0))], "does not begin with the bundle's header"),
        ([(b"", header(num_shards=0))], "names 0 data files"),
        ([(b"", header(num_shards=10**9))], "names 1000000000 data files"),
        ([(b"", header(endianness=1))], "big-endian"),
        ([(b"", header(min_consumer=2))], "asks for a reader of version 2"),
        ([(b"", header()), (b"b", b""), (b"a", b"")], "not in order"),
        ([(b"", header()), (b"a", b""), (b"a", b"")], "not in order"),
        ([(b"", header()), (b"\xff\xfe", b"")], "not UTF-8"),
        ([(b"", header()), (b"a" * 5000, b"")], "reaches beyond its block"),
        ([(b"", header()), (b"a", b"\xff" * 12)], "a number has no end"),
        ([(b"", header()), (b"a", b"\x0b")], "unknown kind 3"),
        ([(b"", header()), (b"a", b"\x12\x7f")], "reaches beyond its message"),
        ([(b"", header()), (b"a", message(1, b"x"))], "a number is missing"),
        ([(b"", header()), (b"a", number(2, 5))], "a number where a message"),
        ([(b"", header()), (b"a", entry(FLOAT32, (-1,), 0, 4, 0))], "negative"),
        ([(b"", header()), (b"a", entry(FLOAT32, (1,), -4, 4, 0))], "negative"),
        ([(b"", header()), (b"a", entry(FLOAT32, (1,), 0, 4, 0, shard=1))], "'a' should lie in data file 1 of 1"),
        (
            [(b"", header()), (b"a", entry(FLOAT32, (2,), 0, 4, 0))],
            r"'a' of shape \(2,\) and type float32 cannot have 4",
        ),
        ([(b"", header()), (b"a", entry(FLOAT32, (2**62, 2**62), 0, 0, 0))], "larger than any tensor"),
        ([(b"", header()), (b"a", entry(FLOAT32, (0, 2**62), 0, 0, 0))], "larger than any tensor"),
        ([(b"", header()), (b"a", entry(FLOAT32, (1,) * 40, 0, 4, 0))], "more than 32 dimensions"),
        ([(b"", header()), (b"a", number(1, 1) + message(2, number(3, 1)))], "no known shape"),
    ],
)
def test_a_signed_lie_is_refused_with_its_reason(records: list[tuple[bytes, bytes]], reason: str, index_of) -> None:
    with pytest.raises(UserError, match=re.compile(rf"made\.index: .*{reason}")):
        index_of(*records)


def test_compressed_blocks_are_refused_with_a_sentence(index_of) -> None:
    with pytest.raises(UserError, match=r"compressed \(snappy\)"):
        index_of((b"", header()), compression=1)


def test_a_tensor_said_to_be_huge_takes_neither_time_nor_memory(index_of) -> None:
    size = 1 << 45
    bundle = index_of((b"", header()), (b"a", entry(FLOAT32, (size // 4,), 0, size, 0)))
    tracemalloc.start()
    with pytest.raises(UserError, match="cut off"):
        bundle.read("a")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_an_index_of_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "big.index").open("wb") as file:
        os.truncate(file.fileno(), 1 << 30)
    start = time.perf_counter()
    with pytest.raises(UserError, match="more than any index has"):
        TensorBundle.open(tmp_path / "big")
    assert time.perf_counter() - start < 1
