"""Reads the folder of a sweep again."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from schemas.artifact import Artifact
from schemas.base import MessageModel
from schemas.results import RankedCandidate
from spica_async.errors import InputError, file_problem
from spica_async.search.baseline import BASELINE


class _Summary(MessageModel):
    """What is looked for in a sweep's summary."""

    baseline: RankedCandidate | None = None


_RANKINGS = ("ranking.json", "front.json")
_ranking = TypeAdapter(list[RankedCandidate])


def read_entry(folder: Path, candidate_id: str | None = None) -> RankedCandidate:
    """A candidate of a results folder; the first of its ranking unless another is named.

    Args:
        folder: of the sweep.
        candidate_id: whole, or the end of it from the branch on, e.g. `agg-21`; or `baseline`.

    Raises:
        InputError: the folder holds no results, or no such candidate that was measured.
    """
    if candidate_id == BASELINE:
        return _read_baseline(folder)
    entries = _read_ranking(folder)
    if candidate_id is None:
        if not entries:
            raise InputError(f"{folder}: nothing was feasible")
        return entries[0]
    for entry in entries:
        if _is_named(entry.candidate_id, candidate_id):
            return entry
    raise InputError(f"{folder}: no candidate {candidate_id}")


def read_artifact(folder: Path, entry: RankedCandidate) -> Artifact | None:
    """What a candidate has left behind; None if that is nothing.

    Raises:
        InputError: it cannot be read.
    """
    if entry.artifact is None:
        return None
    path = folder / entry.artifact
    try:
        return Artifact.model_validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error) as error:
        problem = file_problem(error) if isinstance(error, OSError) else "damaged"
        raise InputError(f"{path}: {problem}") from None
    except ValidationError:
        raise InputError(f"{path}: no artifact") from None


def _read_baseline(folder: Path) -> RankedCandidate:
    path = folder / "summary.json"
    try:
        summary = _Summary.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {file_problem(error)}") from None
    except ValidationError:
        raise InputError(f"{path}: no summary of a sweep") from None
    if summary.baseline is None:
        raise InputError(f"{folder}: the sweep has no baseline")
    return summary.baseline


def _read_ranking(folder: Path) -> list[RankedCandidate]:
    for path in (folder / name for name in _RANKINGS):
        try:
            return _ranking.validate_json(path.read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: {file_problem(error)}") from None
        except ValidationError:
            raise InputError(f"{path}: no ranking of a sweep") from None
    raise InputError(f"{folder}: no results of a sweep: no {' or '.join(_RANKINGS)}")


def _is_named(candidate_id: str, name: str) -> bool:
    return candidate_id == name or candidate_id.endswith(f"-{name}")
