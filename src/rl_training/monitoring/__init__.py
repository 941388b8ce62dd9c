"""What shows a run while it goes on: displays and trackers, which the engine uses."""
