"""What the programs exit with, beside 0."""

from __future__ import annotations

from typing import Final

EXIT_FAULT: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_TIME_UP: Final = 3
EXIT_INTERRUPTED: Final = 130
