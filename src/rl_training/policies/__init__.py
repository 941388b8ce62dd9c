"""Policies: how the agents of all algorithms act."""
