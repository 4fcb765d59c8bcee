"""RPC between processes: authentication, transports, framing and limits."""
