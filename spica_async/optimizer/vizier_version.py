"""Which versions of Vizier the optimizer was tried with: it sets up classes that are not public."""

from __future__ import annotations

from importlib import metadata
from typing import Final

from spica_async.errors import InputError

TRIED: Final = ("0.1.21",)
"""Versions of `google-vizier` whose `vizier._src` is as `designer`, `fit`, `gaussian_process` and
`padding` use it. The integration tests of the optimizer show that of the installed one."""


def check_vizier_version(tried: tuple[str, ...] = TRIED) -> None:
    """See that the installed Vizier is one that was tried, before a sweep is planned.

    Raises:
        InputError: it is another one, or is missing.
    """
    wanted = " or ".join(tried)
    try:
        installed = metadata.version("google-vizier")
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed not in tried:
        raise InputError(
            f"sweep.optimizer: google-vizier {wanted} is needed, and {installed} is installed;"
            " with profile: random the sweep does without"
        )
