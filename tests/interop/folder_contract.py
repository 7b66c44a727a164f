"""What every model folder with a tokenizer must fulfil, whoever wrote it."""

import json
from pathlib import Path

import transformers

from openalbert.interop.huggingface import read_folder_config
from openalbert.text.tokenizer import Tokenizer

WORD = "the "


def check_tokenizer_takes_what_the_model_takes(folder: Path) -> None:
    """transformers' tokenizer cuts a text where the model's positions end, and nowhere before."""
    positions = read_folder_config(folder).max_positions
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == positions
    assert not {"max_length", "max_len", "truncation_strategy", "stride"} & set(config)
    whole = json.loads((folder / "tokenizer.json").read_text())
    assert (whole["truncation"], whole["padding"]) == (None, None)  # would cut or pad whatever the caller asks for

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.model_max_length == positions
    text = WORD * (positions + 50)
    cut = theirs(text, truncation=True)["input_ids"]
    ours = Tokenizer.load(folder)
    expected = [ours.cls_id, *ours.encode(text)[: positions - 2], ours.sep_id]
    assert cut == expected
    pair = theirs(WORD * 10, text, truncation="only_second")["input_ids"]
    assert len(pair) == positions
    assert len(theirs(WORD * 10)["input_ids"]) < positions  # nothing is padded unasked
