"""Traffic control: a plan's flow policy, applied to the live flows of a run.

An agent on every machine (`agent.py`, a small process) finds the connections of its machine's tasks
and owns the classes of its network card. One controller in the driver (`control.py`) joins both
ends of every connection into flows between tasks, asks the plan's policy for rates when flows open
or close, and tells the agents.
"""
