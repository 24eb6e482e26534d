"""Data sets: published files, the user's own tables, column types, encodings, images and texts."""
