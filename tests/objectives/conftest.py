"""Property tests here do without a deadline: how long an example takes says nothing on a busy machine."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
