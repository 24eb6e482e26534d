"""A whole study of ours beside the same study on another program."""
