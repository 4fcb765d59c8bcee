"""Recovery from faults: events in, decisions out."""
