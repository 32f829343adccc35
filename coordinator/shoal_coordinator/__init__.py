"""The coordinator: a FastAPI shell around `shoal.core.server.hub`. `shoal_coordinator.main.run(settings)` starts it."""
