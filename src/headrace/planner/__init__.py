"""Where every task of a job runs, under which policy, and why."""
