"""What programs that act for a person may ask for, over the Model Context Protocol."""
