"""The commands of rl-training, one module per command."""
