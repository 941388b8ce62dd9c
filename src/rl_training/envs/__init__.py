"""Environments: making them, stepping many, saving and restoring them."""
