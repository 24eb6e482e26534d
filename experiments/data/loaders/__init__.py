"""One function a data set; `table` lists all of them."""
