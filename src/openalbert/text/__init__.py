"""From text to token shards, without torch: corpus, sentences, tokenizer, shards."""
