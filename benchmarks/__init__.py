"""Measurements of the package; `make bench` runs them all."""
