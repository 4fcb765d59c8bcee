"""What only Linux has: heaps, network cards, queues."""
