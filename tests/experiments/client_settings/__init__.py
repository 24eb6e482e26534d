"""Tests of tables of client settings: grid, proxy rows, cells, the table."""
