"""Programs of their own that do the same work with other libraries."""
