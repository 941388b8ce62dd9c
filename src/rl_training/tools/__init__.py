"""What is done with runs besides training them: play, export, fork, several seeds, a check-up."""
