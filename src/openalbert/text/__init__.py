"""Words become numbers, without torch: corpus, sentences, vocabulary, shards."""
