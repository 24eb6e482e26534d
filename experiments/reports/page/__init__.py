"""A study, a sweep or several studies as one HTML page, and its pictures as files."""
