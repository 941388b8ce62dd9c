"""The commands of rl-training, a module each."""
