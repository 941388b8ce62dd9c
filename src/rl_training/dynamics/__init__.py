"""Compiled environments: reset, step and observe as functions of a state vector."""
