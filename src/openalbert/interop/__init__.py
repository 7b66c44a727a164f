"""Models on disk, ours and other people's."""
