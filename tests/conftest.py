"""Probe environments are registered, and torch keeps to one thread, in every test."""

import probes  # noqa: F401
import torch

torch.set_num_threads(1)
