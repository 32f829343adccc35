"""The coordinator: a FastAPI shell around `shoal.core.hub`. `shoal_coordinator.serve.run(settings)` starts it."""
