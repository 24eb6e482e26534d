"""What a table of client settings is worth beside its rivals, and what each costs; `fedscout bench client-settings`."""
