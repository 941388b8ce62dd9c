"""Tuning: searching for the hyper-parameters with which a config learns best."""
