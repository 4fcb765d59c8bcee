"""Commands that observe runs."""
