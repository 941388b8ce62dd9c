"""Play, export, fork, several seeds, doctor."""
