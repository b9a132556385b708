"""Property tests here have no deadline per example: the first one imports and loads what the others find loaded."""

from hypothesis import settings

settings.register_profile("triptych", deadline=None)
settings.load_profile("triptych")
