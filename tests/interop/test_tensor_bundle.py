import contextlib
import random
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.interop.bundle_writer import TYPES, write_bundle

from openalbert.errors import UserError
from openalbert.interop.google_checkpoint import TensorBundle

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "google"
MAKE = runpy.run_path(str(GOLDEN / "make.py"))
PREFIX = MAKE["PREFIX"]
NOT_READ = ("partitioned", "text", "bool")  # of the checkpoint `kinds`


def everything(bundle: TensorBundle) -> dict[str, bytes]:
    """All that can be read, as bytes, together with shapes and types."""
    return {
        name: repr((found.kind, found.shape)).encode() + bundle.read(name).tobytes()
        for name, found in bundle.entries.items()
        if name not in NOT_READ
    }


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A copy of the small checkpoint in two shards, to be broken."""
    return Path(shutil.copytree(GOLDEN / "kinds", tmp_path / "kinds"))


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
    assert bundle.read("bfloat16").dtype == np.float32
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


@pytest.mark.parametrize("name", ["partitioned", "text", "bool"])
def test_tensors_that_are_not_read_are_refused_by_name(name: str) -> None:
    bundle = TensorBundle.open(GOLDEN / "kinds")
    with pytest.raises(UserError, match=f"'{name}' is no whole tensor of numbers"):
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
    readable = {name: found for name, found in bundle.entries.items() if name not in NOT_READ}
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
                with pytest.raises(UserError, match=f"'{name}' is damaged"):
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
