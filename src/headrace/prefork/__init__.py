"""Fork servers: processes that import once and fork tasks."""
