"""The command line: one file a command; `main` puts them together and turns errors into lines and exit codes."""
