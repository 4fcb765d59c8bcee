"""Where graphs come from; every module here makes a `GraphSource`."""
