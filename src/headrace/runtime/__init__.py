"""What runs: stores, samplers and trainers as processes, and what they tell of themselves."""
