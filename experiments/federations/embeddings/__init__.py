"""What a network that somebody has trained makes of pictures and texts: vectors to compare and to train on."""
