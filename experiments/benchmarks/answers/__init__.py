"""What of a language model's recorded answers is valid."""
