"""A job as the hub runs it: its plan, the settings that may change, and the bounds on its updates."""
