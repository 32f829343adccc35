"""The tests; a package, so that their shared parts are imported as `tests.…` and nothing else can take that name."""
