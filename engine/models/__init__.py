"""Models as flat vectors: their layout, dense nets of many clients at once, convolutions without autograd."""
