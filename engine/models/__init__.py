"""Models as flat vectors: parameter layout, batched dense nets of many clients, convolutions without autograd."""
