"""Actors beside the learner, read in a fixed order: in this process, in processes of this machine, or on Ray."""
