"""The command line: command modules; `main` runs them, and `program` maps errors to messages and exit codes."""
