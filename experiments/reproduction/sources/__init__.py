"""The studies of each source, with its published numbers and what it says of them."""
