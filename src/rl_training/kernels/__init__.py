"""Compiled code and gradients written out: what does the work of torch where torch is slow."""
