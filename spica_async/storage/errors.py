"""What a database cannot do, in words that do not depend on which one it is."""

from __future__ import annotations

from spica_async.errors import SpicaError


class StorageError(SpicaError):
    """The database cannot do what it was asked; what it has acknowledged is safe."""


class StorageUnavailableError(StorageError):
    """The database cannot be reached. Worth trying again."""


class StorageBusyError(StorageError):
    """Somebody else has held the database for too long. Worth trying again."""


class StorageFullError(StorageError):
    """There is no room left for what was to be written. Worth trying again once there is."""


class StorageDamagedError(StorageError):
    """What the database holds cannot be read."""


class StorageVersionError(StorageError):
    """A newer version of this program has written the database."""
