"""Configurations, traces, model folders and messages of which something is wrong, by the thousand.

    python benchmarks/fuzz.py --seed 1 --count 10000
    python benchmarks/fuzz.py --seed 1 --only documents --first 4711 --count 1 --show

Each case must be read, or be refused in one clear line: no traceback, no more than five seconds of
computing, no more than a gigabyte. The exit code is 1 when one was not. Kind, seed and number give
a case again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from fuzzing.harness import Finding, Opener, case_random, run_child, run_kind

console = Console(width=150, highlight=False)

# The engine keeps something of every model, and it would be counted as what one of them needs.
_PER_CHILD: Final = {"documents": 10_000, "traces": 10_000, "models": 500, "messages": 2_000}
_SHOWN_FINDINGS: Final = 3


def main() -> int:
    """Try all cases, print what came of them, and tell whether all was well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all that is random")
    parser.add_argument("--only", choices=list(_PER_CHILD), help="one kind, and not all")
    parser.add_argument("--count", type=int, default=10_000, help="cases of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--show", action="store_true", help="print the cases, and try none")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Of spoilt texts there are some that no terminal can show.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # it is no other stream
    cases = range(options.first, options.first + options.count)
    kinds = [options.only] if options.only else list(_PER_CHILD)
    if options.child is not None:
        run_child(options.only, opener(options.only), options.seed, cases, options.child)
        return 0
    if options.show:
        for kind in kinds:
            show(kind, options.seed, cases)
        return 0
    console.print(f"seed {options.seed}")
    table = Table("kind", "cases", "CPU s", "slowest s", "peak MiB", "came to", "findings")
    broken = False
    for kind in kinds:
        seen: Counter[str] = Counter()

        def report(finding: Finding, kind: str = kind, seen: Counter[str] = seen) -> None:
            seen[finding.what] += 1
            if seen[finding.what] == 1:
                console.print(f"{kind} {finding.case}: {finding.what}", markup=False)
                console.print(finding.detail, markup=False)
                console.print(f"  input: {finding.input[:600]}", markup=False)

        tally = run_kind(kind, options.seed, cases, per_child=_PER_CHILD[kind], report=report)
        broken = broken or bool(tally.findings)
        table.add_row(
            kind,
            str(tally.cases),
            f"{tally.seconds:.0f}",
            f"{tally.slowest:.2f} ({tally.slowest_case})",
            str(tally.peak_bytes // 2**20),
            ", ".join(f"{count} {what}" for what, count in tally.outcomes.most_common()),
            str(len(tally.findings)),
        )
        for what, count in seen.most_common():
            numbers = [f.case for f in tally.findings if f.what == what][:_SHOWN_FINDINGS]
            console.print(f"{kind}: {count} x {what}, e.g. {numbers}", markup=False)
    console.print(table)
    return 1 if broken else 0


def show(kind: str, seed: int, cases: range) -> None:
    """Print cases as they are made."""
    with opener(kind)() as subject:
        for case in cases:
            console.print(
                f"{kind} {case}: {subject.make(case_random(kind, seed, case))!r}", markup=False
            )


def opener(kind: str) -> Opener:
    """What is tried of a kind; what it needs is imported in the process that tries it."""
    found: Opener = import_module(f"fuzzing.{kind}").opened
    return found


if __name__ == "__main__":
    sys.exit(main())
