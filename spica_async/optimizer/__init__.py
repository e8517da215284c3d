"""One Vizier study per branch, in a process of its own, behind `ask` and `observe`."""
