"""Environments in compiled code: how one begins, what an action does and what is seen, as functions of numbers."""
