"""Config classes of all algorithms, and loading of configs. Nothing here needs torch."""
