"""Tables and progress bars."""
