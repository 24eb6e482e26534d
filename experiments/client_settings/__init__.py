"""Tables of client settings: requests, proxy data and tuning."""
