"""The search space of one sweep: shapes, pools of parallel configurations, branches, projection."""
