"""Traffic control: applies a plan's flow policy to the flows of a run.

An agent process on every machine (`agent.py`) finds the connections of its tasks and manages the
HTB classes of its NIC. The controller in the driver (`coordinator.py`) matches both ends of every
connection to flows between tasks, computes rates with the plan's policy, and sends them to agents.
"""
