"""The verbs of the command line, a module each; nothing heavy is imported before a verb runs."""
