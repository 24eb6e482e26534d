"""Pictures of the page, each a function from values to an Altair chart."""
