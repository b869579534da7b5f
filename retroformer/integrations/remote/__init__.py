"""Copies adapters and ratings to and from a model hub (`hf://owner/name`) or any address of fsspec."""
