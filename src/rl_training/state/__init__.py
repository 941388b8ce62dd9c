"""Everything that survives a kill: seeding, opt-out state, durable files, checkpoints, run directories."""
