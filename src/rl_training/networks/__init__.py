"""Networks: encoders, action heads, actor-critic."""
