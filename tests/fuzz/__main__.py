"""Search for examples that fail until the time is over.

    python -m tests.fuzz --minutes 10

Every test file that uses Hypothesis is a target. A round runs one target in a process of its own, with a new seed; the target that
has had the least time is next, so all get the same. A failing example is written above its test as `@example`, so that every later run of
the tests begins with it: check it in together with the fix. Ends with 1 if something failed.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE = "fuzzing"
TEST_S_MAX = 900
"""Hypothesis takes its time to shrink a failure, and a machine that is busy is none."""
_EXAMPLES = re.compile(r"^ +- (\d+) passing", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_CASE = re.compile(r"^(E +)Failing test case: (test_\w+)\(\n((?:E .*\n)*?)\1\)$", re.MULTILINE)
"""As Hypothesis prints it and pytest shows it: the call of the test, an argument a line."""
_OBJECT = re.compile(r"^E +\w+=<.*>,$")
"""An argument that is no example but a fixture; if it is an example, it cannot be written down, and Hypothesis says that it is missing."""
EXAMPLE_CHARS_MAX = 4_000


@dataclass(slots=True)
class Target:
    """One test file, and what became of it so far."""

    path: str
    seconds: float = 0.0
    rounds: int = 0
    examples: int = 0
    running: bool = False
    failed: bool = False


class Search:
    """Rounds of all targets, by any number of threads."""

    def __init__(self, targets: list[Target], seed: int, seconds: float) -> None:
        self.targets = targets
        self.failures: list[str] = []
        """What pytest printed, and the commands that show it again."""
        self._seed = seed
        self._deadline_s = time.monotonic() + seconds
        self._lock = threading.Lock()

    def work(self) -> None:
        """Run rounds until the time is over. The last one is finished: it may be about to report something."""
        while (target := self._next()) is not None:
            started_s = time.monotonic()
            seed = self._seed + target.rounds
            done = subprocess.run(_command(target.path, seed), capture_output=True, text=True, check=False, cwd=ROOT)
            with self._lock:
                target.seconds += time.monotonic() - started_s
                target.rounds += 1
                target.examples += sum(map(int, _EXAMPLES.findall(done.stdout)))
                target.running = False
                if done.returncode:
                    target.failed = True  # each further round would begin with the same example
                    self.failures.append(_shown(target.path, seed, done.stdout + done.stderr))
                    file = ROOT / target.path
                    file.write_text(keep_examples(file.read_text(), done.stdout))

    def _next(self) -> Target | None:
        with self._lock:
            waiting = [each for each in self.targets if not each.running and not each.failed]
            if not waiting or time.monotonic() > self._deadline_s:
                return None
            target = min(waiting, key=lambda each: each.seconds)
            target.running = True
            return target


def find_targets(directory: Path) -> list[Target]:
    """Return every test file below a directory that uses Hypothesis."""
    paths = sorted(path for path in directory.rglob("test_*.py") if _uses_hypothesis(path.read_text()))
    return [Target(path.relative_to(ROOT).as_posix()) for path in paths]


def _uses_hypothesis(source: str) -> bool:
    return "from hypothesis import" in source and any(
        isinstance(node, ast.ImportFrom) and node.module == "hypothesis" for node in ast.parse(source).body
    )


def _command(test: str, seed: int) -> list[str]:
    selected = [test, "-m", "hypothesis and not jvm", f"--hypothesis-profile={PROFILE}", f"--hypothesis-seed={seed}"]
    return [
        sys.executable,
        "-m",
        "pytest",
        *selected,
        "--hypothesis-show-statistics",
        "-q",
        "-o",
        f"timeout={TEST_S_MAX}",
        "-p",
        "no:cacheprovider",
    ]


def keep_examples(source: str, output: str) -> str:
    """Return the source of a test file with the failing examples that pytest printed written above their tests.

    What cannot be written down is left out: the steps of a state machine, objects without a repr, megabytes.
    """
    for _, test, lines in _CASE.findall(output):
        arguments = "\n".join(line.removeprefix("E") for line in lines.splitlines() if not _OBJECT.search(line))
        try:
            decorator = f"@{ast.unparse(ast.parse(f'example({arguments})', mode='eval'))}\n"
        except SyntaxError:
            continue
        if decorator not in source and len(decorator) <= EXAMPLE_CHARS_MAX:
            source = re.sub(rf"^(?=def {test}\()", lambda _, line=decorator: line, source, flags=re.MULTILINE)  # type: ignore[misc]
    if "@example(" in source and not re.search(r"^from hypothesis import .*\bexample\b", source, re.MULTILINE):
        source = source.replace("\nfrom hypothesis import ", "\nfrom hypothesis import example, ", 1)
    return source


def _shown(path: str, seed: int, output: str) -> str:
    tests = sorted(set(_FAILED.findall(output))) or [path]
    again = [f"  python -m pytest '{each}' --hypothesis-profile={PROFILE} --hypothesis-seed={seed}" for each in tests]
    report = output.partition("== Hypothesis Statistics")[0]
    return "\n".join([report.rstrip("= \n"), "", "again:", *again])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="draw the same examples as another run (default: random)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="targets that run side by side")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    search = Search(find_targets(ROOT / "tests"), seed, options.minutes * 60)
    say = sys.stdout.write
    say(f"{options.minutes:g} minutes over {len(search.targets)} targets, seed {seed}\n")
    sys.stdout.flush()
    threads = [threading.Thread(target=search.work, daemon=True) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for target in search.targets:
        verdict = "  FAILED" if target.failed else ""
        say(f"{target.path:<52} {target.rounds:>4} rounds {target.examples:>9,} examples{verdict}\n")
    for failure in search.failures:
        say(f"\n{failure}\n")
    total = sum(target.examples for target in search.targets)
    if search.failures:
        say(
            f"\n{total:,} examples, {len(search.failures)} targets failed; `git diff` shows the examples that were kept\n"
        )
        sys.exit(1)
    say(f"{total:,} examples, none failed\n")


if __name__ == "__main__":
    main()
