"""Studies: the pipeline from data to result, and a study's folder and runner."""
