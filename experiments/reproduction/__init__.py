"""Published studies run again: their numbers beside ours, and whether what their authors saw is seen."""
