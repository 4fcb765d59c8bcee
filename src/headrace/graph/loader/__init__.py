"""PyG loaders, samplers and stores for partitioned graphs."""
