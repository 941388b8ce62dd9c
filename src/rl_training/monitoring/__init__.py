"""Progress displays and experiment trackers."""
