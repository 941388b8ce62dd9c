"""Actors and learners: actors in this process, in processes of this machine, or on Ray."""
