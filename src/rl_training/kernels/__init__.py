"""Compiled kernels and hand-written gradients, where torch is slow."""
