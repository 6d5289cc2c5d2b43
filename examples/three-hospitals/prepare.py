"""Make identities, records and one signed agreement for three hospitals in containers (see compose.yaml).

    python prepare.py SHARED NORTH SOUTH EAST [UID]

Done once: a folder that holds an agreement already is left as it is. Each hospital's folder gets its key and
its records and belongs to the account its container runs under; the agreement names hospitals by host name.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from run import DRAFT, HOSPITALS, STEPS, peer, prepare_data

PORT = 7000
OWNER = 10001  # the account of the image


def main(shared: Path, homes: list[Path], owner: int, hosts: list[str] | None = None) -> None:
    agreement = shared / "agreement.toml"
    if agreement.exists():
        print(f"{agreement} is there already")
        return
    hosts = hosts or [f"{name}:{PORT}" for name in HOSPITALS]
    names, _ = prepare_data(shared / "records")
    members = []
    for name, home, host in zip(HOSPITALS, homes, hosts, strict=True):
        home.mkdir(parents=True, exist_ok=True)
        peer("keygen", home / "identity", "--name", name)
        shutil.move(shared / "records" / name / "records.csv", home / "records.csv")  # another volume
        members += ["--member", f"{home / 'identity' / 'certificate.pem'}@{host}"]
    draft = shared / "draft.toml"
    draft.write_text(DRAFT.format(steps=STEPS, features=", ".join(f'"{n}"' for n in names)))
    unsigned = shared / "unsigned.toml"
    print(peer("agree", draft, *members, "--out", unsigned))
    for home in homes:
        peer("agree", unsigned, "--sign", home / "identity")
    for place in (*homes, shared):
        for each in (place, *place.rglob("*")):
            if os.geteuid() == 0:
                os.chown(each, owner, owner)
    unsigned.rename(agreement)  # last: now it is ready


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:5]]
    main(folders[0], folders[1:], int(sys.argv[5]) if len(sys.argv) > 5 else OWNER)
