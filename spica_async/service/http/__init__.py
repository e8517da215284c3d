"""The daemon over HTTP: `app` answers for a `Control`, `server` listens.

Nothing is imported here, so that the command line may ask for the address alone.
"""

from typing import Final

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8265
DEFAULT_URL: Final = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
