"""One sweep: its branches, their schedules, and what drives them to the end."""
