"""Loaders, one function per data set; `table` registers all of them."""
