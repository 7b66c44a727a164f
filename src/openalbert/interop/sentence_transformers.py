"""The files that make a model folder one of sentence-transformers: encoder, mean over tokens, normalization."""

import json
from pathlib import Path

from openalbert import atomic_io

MODULES = (("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Normalize", "Normalize"))


def write_sentence_transformers_files(folder: Path, hidden_size: int, max_length: int) -> None:
    """Write them into a model folder, for embeddings that are the normalized mean over all tokens."""
    modules = [
        {"idx": int(number), "name": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, path, kind in MODULES
    ]
    pooling = {
        "word_embedding_dimension": hidden_size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for _, path, _ in MODULES[1:]:
        (folder / path).mkdir(exist_ok=True)
    for name, values in (
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False}),
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}),
        ("modules.json", modules),
    ):
        atomic_io.write_text(folder / name, json.dumps(values, indent=2) + "\n")
