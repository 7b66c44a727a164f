"""A batch that cannot be encoded is refused with a sentence, and every reasonable form of one is taken."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from openalbert.errors import UserError
from openalbert.model.albert import AlbertModel, check_batch
from openalbert.model.presets import preset

MICRO = preset("albert-micro")
IDS = torch.arange(5, 19).view(2, 7)


@pytest.fixture(scope="module")
def model() -> AlbertModel:
    torch.manual_seed(0)
    return AlbertModel(MICRO).eval()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_ids_of_any_width_give_the_same(model: AlbertModel, dtype: torch.dtype) -> None:
    segments = torch.ones_like(IDS)
    expected = model.encode(IDS, segments)
    assert torch.equal(model.encode(IDS.to(dtype), segments.to(dtype)).hidden, expected.hidden)
    packed = model.encode_packed(IDS.flatten().to(dtype), [7, 7], segments.flatten().to(dtype))
    torch.testing.assert_close(packed.pooled, expected.pooled)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.bool])
def test_masks_of_any_kind_give_the_same(model: AlbertModel, dtype: torch.dtype) -> None:
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    assert torch.equal(model.encode(IDS, mask=mask.to(dtype)).hidden, model.encode(IDS, mask=mask).hidden)
    assert not torch.equal(model.encode(IDS, mask=mask.to(dtype)).hidden, model.encode(IDS).hidden)


def test_an_empty_batch_is_encoded_to_nothing(model: AlbertModel) -> None:
    encoded = model.encode(IDS[:0])
    assert encoded.hidden.shape == (0, 7, 64)
    assert encoded.pooled.shape == (0, 64)


# Form, what is wrong, and the sentence.
WRONG: list[tuple[int, dict[str, Any], str]] = [
    (2, {"ids": IDS + 1000}, "ids holds 1018, but the vocabulary has 1000: 0 to 999 will do"),
    (2, {"ids": IDS - 10}, "ids holds -5"),
    (2, {"ids": IDS.float()}, "ids holds torch.float32: whole numbers"),
    (2, {"ids": IDS.tolist()}, "ids is a list: a tensor was expected"),
    (2, {"ids": IDS[0]}, r"ids has shape \[7\], but batch x length"),
    (2, {"ids": IDS[:, :0]}, "at least one token"),
    (2, {"segments": IDS * 0 + 2}, "segments holds 2, but the number of segment types is 2"),
    (2, {"segments": IDS[:, :6] * 0}, r"segments has shape \[2, 6\], but ids has \[2, 7\]"),
    (2, {"segments": IDS[:1] * 0}, r"segments has shape \[1, 7\]"),
    (2, {"segments": (IDS * 0).to("meta")}, "segments is on meta, but ids is on cpu"),
    (2, {"mask": IDS[:, :6] * 0}, r"mask has shape \[2, 6\]"),
    (2, {"mask": torch.full((2, 7), -1e4)}, "mask holds other numbers"),
    (2, {"mask": (IDS * 0).to("meta")}, "mask is on meta, but ids is on cpu"),
    (2, {"at": torch.zeros(2, 1)}, "at holds torch.float32: whole numbers"),
    (2, {"at": torch.tensor([[7], [0]])}, "at holds 7, but the length is 7"),
    (2, {"at": torch.tensor([[0]])}, r"at has shape \[1, 1\]"),
    (1, {"ids": IDS.flatten() + 1000}, "ids holds 1018"),
    (1, {"ids": IDS}, r"ids has shape \[2, 7\], but tokens"),
    (1, {"ids": IDS.flatten(), "at": torch.tensor([14])}, "at holds 14, but the length is 14"),
]


@pytest.mark.parametrize(("form", "change", "sentence"), WRONG)
def test_a_wrong_batch_is_refused_with_a_sentence(form: int, change: dict[str, Any], sentence: str) -> None:
    # Without the check of types that tests have and users have not.
    check = getattr(check_batch, "__wrapped__", check_batch)
    with pytest.raises(UserError, match=sentence):
        check(MICRO, form, **({"ids": IDS} | change))


def test_both_input_forms_check_what_they_are_given(model: AlbertModel) -> None:
    with pytest.raises(UserError, match="ids holds 1018"):
        model.encode(IDS + 1000)
    with pytest.raises(UserError, match="ids holds 1018"):
        model.encode_packed(IDS.flatten() + 1000, [7, 7])


def test_a_user_reads_the_sentence_of_both_input_forms() -> None:
    """In a process of its own, where no shape in a signature is checked."""
    code = """
import torch, openalbert
from openalbert.errors import UserError
model = openalbert.load("albert-micro").module
for call in (
    lambda: model.encode(torch.full((1, 3), 1000)),
    lambda: model.encode(torch.ones(1, 3).long(), torch.ones(1, 2).long()),
    lambda: model.encode_packed(torch.full((3,), -1), [3]),
):
    try:
        call()
    except UserError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [
        "ids holds 1000",
        "segments has shape [1",
        "ids holds -1",
    ]
