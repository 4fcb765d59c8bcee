"""Batches of a graph in parts as PyG knows them: loaders, samplers and stores."""
