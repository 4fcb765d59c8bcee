"""Planning: task placement, flow policy, seed mix, and explanations of plans."""
