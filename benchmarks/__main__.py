"""Run the benchmarks and print one JSON object.

    python -m benchmarks [name ...] [-o FILE]
    python -m benchmarks convex deep --against ../before --turns 3 --options=--quick

A benchmark is a module beside this one that prints a JSON object when run, named as its module. Each runs
in a process of its own, so that none inherits another's memory or warm caches. Every figure is a ratio
against a named rival measured in the same run. With --against the rival is another checkout of ourselves:
its benchmarks of the same name run in turn with these, and the figures both have are set side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON here as well")
    parser.add_argument(
        "--against", type=Path, help="another checkout, whose benchmarks run in turn with ours"
    )
    parser.add_argument("--turns", type=int, default=3, help="how often each runs, with --against")
    parser.add_argument("--options", default="", help="handed on to every benchmark")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; the benchmarks are {', '.join(NAMES)}")
    records, failed = {}, False
    for name in options.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        arguments = options.options.split()
        if options.against is None:
            records[name] = ran(name, arguments, HERE.parent)
        else:
            turns = [
                [ran(name, arguments, root) for root in (options.against.resolve(), HERE.parent)]
                for _ in range(options.turns)
            ]
            records[name] = side_by_side(turns)
        failed |= "failed" in records[name]
        print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    text = json.dumps(records, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return int(failed)


def ran(name: str, arguments: list[str], root: Path) -> dict[str, Any]:
    """What the benchmark of one checkout prints; it imports that checkout's package."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    done = subprocess.run(command, cwd=root, env=where, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = (
        json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode, "in": root.name}
    )
    return result


def side_by_side(turns: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Figures that both checkouts print, of every turn, and the ratio of their medians."""
    broken = next((record for turn in turns for record in turn if "failed" in record), None)
    if broken is not None:
        return broken
    before, now = ([dict(figures(turn[k])) for turn in turns] for k in (0, 1))
    compared = {}
    for key in before[0]:
        if all(key in record for record in (*before, *now)):
            old, new = ([record[key] for record in records] for records in (before, now))
            middle = statistics.median(old)
            compared[key] = {"before": old, "now": new} | (
                {"now_over_before": round(statistics.median(new) / middle, 3)} if middle else {}
            )
    return compared


def figures(record: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a record with the names that lead to it."""
    if isinstance(record, dict):
        for key, value in record.items():
            yield from figures(value, f"{path}/{key}" if path else key)
    elif isinstance(record, (int, float)) and not isinstance(record, bool):
        yield path, float(f"{record:.4g}")


if __name__ == "__main__":
    sys.exit(main())
