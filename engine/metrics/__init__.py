"""What is measured of a model on test rows, in place of accuracy."""
