"""How rows are dealt to clients; `table` lists all kinds."""
