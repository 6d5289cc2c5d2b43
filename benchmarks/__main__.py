"""Run the benchmarks and print one JSON object.

    python -m benchmarks [name ...] [-o FILE]

A benchmark is a module beside this one that prints a JSON object when run, named as its module. Each runs
in a process of its own, so that none inherits another's memory or warm caches. Every figure is a ratio
against a named rival measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON here as well")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; the benchmarks are {', '.join(NAMES)}")
    records, failed = {}, False
    for name in options.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], stdout=subprocess.PIPE, text=True)
        failed |= done.returncode != 0
        records[name] = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.returncode}
        print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    text = json.dumps(records, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
