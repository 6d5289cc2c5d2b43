"""Random histories of one home: runs, trainings, kills at any write, restored backups; is the book ever too low?

    python scripts/histories.py --histories 200 --out docs/results/histories.json

Every history is lived in a home of its own. What really left is kept beside it; after every act the printed total
must be at least its composition and within the lifetime budget, and at the end equal to it wherever nothing was
charged that may not have left.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def histories() -> type:
    """Return the class that the tests use too."""
    sys.path.insert(0, str(ROOT / "tests" / "peers"))
    spec = importlib.util.spec_from_file_location("histories", ROOT / "tests" / "peers" / "test_home.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.History


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    History, started = histories(), time.time()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    sent = exact = 0
    violations: list[str] = []
    for seed in range(asked.histories):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=memory) as folder:
            patch.setattr(os, "fsync", lambda handle: None)  # the order of syncs has a test of its own
            history = History(seed, Path(folder), patch)
            for _ in range(asked.steps):
                history.step()
            history.settle()
        sent += len(history.sent)
        exact += not history.loose and len(history.sent) > 3
        violations += [f"history {seed}: {each}" for each in history.violations]
    record = {
        "command": f"python scripts/histories.py --histories {asked.histories} --steps {asked.steps}",
        "histories": asked.histories,
        "acts": asked.histories * (asked.steps + 1),
        "releases_sent": sent,
        "compared_exactly": exact,
        "under_counts": len(violations),
        "violations": violations[:20],
        "seconds": round(time.time() - started),
    }
    text = json.dumps(record, indent=1)
    if asked.out is not None:
        asked.out.write_text(text + "\n")
    print(text)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
