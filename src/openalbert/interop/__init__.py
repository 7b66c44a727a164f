"""Model folders: Hugging Face's format, Google's checkpoints, tokenizer files, and the verbs about models."""
