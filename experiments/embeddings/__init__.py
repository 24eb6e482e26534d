"""Embeddings by pretrained networks."""
