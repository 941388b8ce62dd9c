"""Experience: collecting, normalising and slicing it."""
