"""The coordinator: a FastAPI shell around `shoal.core.hub`. `coordinator.serve.run(settings)` starts it."""
