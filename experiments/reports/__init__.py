"""Reports: console output, charts, pages, exports."""
