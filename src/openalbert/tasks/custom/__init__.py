"""A user's own files as tasks: the same kinds that the known tasks have, with columns guessed and shown."""
