"""How well a choice that was made on a look-alike carries over to the diagnosed federation."""
