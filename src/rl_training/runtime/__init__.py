"""The engine, the knobs over a run, and one trainer per algorithm."""
