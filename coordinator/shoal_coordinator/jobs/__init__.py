"""Jobs while they run: the runner, its event queue and its journal."""
