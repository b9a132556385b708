"""`triptych mock`: the contracts of frontend, encoder and engine with scripted answers, for tests of clients."""
