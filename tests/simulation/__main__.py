"""`make simulate`: run seeds until one fails, and say how to run that one again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.simulation.run import LOAD_S, Outcome, simulate
from tests.simulation.trace import first_difference

VIOLATIONS_SHOWN_MAX = 20


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of text is part of a run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    arguments = _arguments()
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    failed = 0
    for seed in seeds:
        started_s = time.process_time()
        outcome = simulate(seed, seconds=arguments.seconds)
        if arguments.twice and outcome.ok:
            difference = first_difference(outcome.trace, simulate(seed, seconds=arguments.seconds).trace)
            if difference:
                outcome.violations.append(f"two runs differ:\n{difference}")
        cpu_s = time.process_time() - started_s
        _say(f"seed {seed}: {'ok' if outcome.ok else 'FAILED'} ({cpu_s:.1f} s CPU) {outcome.summary}")
        if arguments.trace is not None:
            arguments.trace.write_text("\n".join(outcome.trace.lines) + "\n")
        if not outcome.ok:
            failed += 1
            _report(outcome)
            if not arguments.keep_going:
                break
    return 1 if failed else 0


def _report(outcome: Outcome) -> None:
    for violation in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
        _say(f"  {violation}")
    _say(f"  reproduce: make simulate SEED={outcome.seed}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--seconds", type=float, default=LOAD_S, help="virtual seconds of load")
    parser.add_argument("--twice", action="store_true", help="run each twice and compare the traces")
    parser.add_argument("--keep-going", action="store_true", help="run all, also after a failure")
    parser.add_argument("--trace", type=Path, help="write the trace of the last run to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
