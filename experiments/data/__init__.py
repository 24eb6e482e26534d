"""Data sets: files and tables as they are published, columns, encodings, images and texts."""
