"""What a network that somebody has trained makes of pictures: vectors to compare and to train on."""
