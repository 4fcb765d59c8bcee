"""Linux-specific functions: memory allocator, network interfaces, bandwidth classes."""
