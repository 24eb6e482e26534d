"""Tables of client settings: checks, tuning and proxies."""
