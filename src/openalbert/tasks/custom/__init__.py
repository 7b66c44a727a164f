"""Custom tasks: a user's files as the kinds of task that the known tasks have, with columns guessed and shown."""
