"""From what people have in their folders to records with a page one: agreements, statements, attacks, audits.

Plan files are read by the command line, which knows them; everything else is turned into a record here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce import __version__
from sottovoce._io import plain
from sottovoce.errors import DataError
from sottovoce.report import summary_page
from sottovoce.report.result_files import read_result

if TYPE_CHECKING:
    from sottovoce.peers.agreement import Agreement
    from sottovoce.peers.member_directory import MemberDirectory

__all__ = ["agreement_record", "read_thing", "statement_record", "with_front"]

STATEMENT, RECORD, LEDGER = "statement.json", "record.json", "ledger.sqlite"


def read_thing(path: str | Path, home: MemberDirectory | None = None) -> dict[str, Any]:
    """Return the record of a JSON file, or of a folder of a run or a study, with its page one.

    Parameters
    ----------
    path : a result record, a member's statement, what ``attack --json`` or ``audit --json`` printed, or a
        folder that holds ``statement.json`` or ``record.json``.
    home : whose book a statement is shown with.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.json"
    >>> _ = file.write_text('{"graph": "path:3", "n": 3, "protocol": "gossip", "rounds": 2, "attackers": '
    ...                     '[0], "reconstructed": [1, 2], "names": ["1", "2"], "combinations": []}')
    >>> read_thing(file)["front"]["answers"][0]["why"]
    'Node 0 computes the value of 2 of 2 others after 2 rounds of gossip.'
    """
    place = Path(path)
    if place.is_dir():
        found = next((place / name for name in (STATEMENT, RECORD) if (place / name).is_file()), None)
        if found is None:
            raise DataError(f"{place} holds neither {STATEMENT} nor {RECORD}; name a file instead.")
        place = found
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return with_front(read_result(place))  # which says what is wrong
    if isinstance(content, dict) and "name" not in content:
        try:
            if {"run", "member", "guarantee", "budget"} <= set(content):
                return statement_record(content, place.parent, home)
            if {"audits", "runs", "confidence"} <= set(content):
                return _payload("audit", content)
            if {"attackers", "reconstructed", "rounds"} <= set(content):
                return _payload("attack", content)
            if {"attackers", "recovered", "psnr"} <= set(content):
                return _payload("attack-dgd", content)
        except (KeyError, TypeError, ValueError) as problem:
            raise DataError(f"{place} lacks what its page shows ({problem!r}); make it again.") from None
    return with_front(read_result(place))


def with_front(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with a page one, where it states something and has none yet.

    >>> with_front({"name": "x", "config": {}, "metrics": {}, "history": [], "guarantees": [],
    ...             "provenance": {}}).get("front") is None
    True
    """
    if record.get("front"):
        return record
    said = {**record["config"], **record["metrics"]}
    if record["name"] == "audit":
        made: dict[str, Any] | None = summary_page.of_audit(said)
    elif record["name"] == "attack":
        made = summary_page.of_reconstruction(said)
    else:
        made = summary_page.of_record(record)
    return record if made is None else record | {"front": made}


def agreement_record(agreement: Agreement, home: MemberDirectory | None = None) -> dict[str, Any]:
    """Return an agreement as a record: its plan, its price for every member, and page one.

    ``home`` is the member whose book says what was spent before.

    >>> from sottovoce.peers.agreement import example_agreement, read_agreement
    >>> made = agreement_record(read_agreement(example_agreement()[0]))
    >>> made["name"], [row["member"] for row in made["metrics"]["prices"]]
    ('agreement', ['ada', 'bo'])
    """
    from sottovoce.peers.agreed_run import AgreedRun

    job = AgreedRun(agreement)
    delta = agreement.budget.delta
    booked: list[dict[str, Any]] = []
    if home is not None:
        node = agreement.index(home.name)
        booked = home.lifetime_ledger.forecast(home.charge_of(job, node))
    plan = agreement.plan
    stated = [plan.privacy("local")]
    if plan.n > 1:
        stated.append(plan.privacy())
    names = [member.name for member in agreement.members]
    return dict(
        plain(
            {
                "name": "agreement",
                "config": dict(plan.describe()) | {"labels": names},
                "metrics": {
                    "title": agreement.title, "graph": agreement.graph, "edge_list": agreement.network.edges,
                    "cost": dict(plan.cost()), "prices": job.table(),
                    "model": agreement.model.model_dump(exclude_unset=True),
                    "timing": agreement.timing.model_dump(),
                },
                "history": [],
                "guarantees": [g.to_dict(delta=delta) for g in stated],
                "provenance": {"version": __version__},
                "front": summary_page.of_agreement(agreement, booked=booked),
            }
        )
    )  # fmt: skip


def statement_record(
    statement: Mapping[str, Any], folder: Path, home: MemberDirectory | None = None
) -> dict[str, Any]:
    """Return a member's statement as a record, with the ledger beside it and the book of its home.

    >>> said = {"run": "ab", "member": "north", "finished": True, "rounds": 3, "of": 3,
    ...         "algorithm": "averaging", "protocol": "tree", "budget": {"epsilon": 2.0, "delta": 1e-5},
    ...         "guarantee": {"view": "local", "adversary": "anyone who sees every message", "label": "ldp",
    ...                       "adjacency": "user", "epsilon": 1.0, "delta": 1e-5, "assumptions": []}}
    >>> statement_record(said, Path("nowhere"))["guarantees"][0]["epsilon"]
    1.0
    """
    about = None
    if (folder / LEDGER).exists():
        from sottovoce.peers.status import read_status

        about = read_status(folder)  # the whole chain is checked on the way
    listed = [statement[key] for key in ("guarantee", "ldp", "network") if statement.get(key)]
    unique: dict[str, Any] = {one["adversary"]: one for one in reversed(listed)}
    return dict(
        plain(
            {
                "name": "statement",
                "config": {"algorithm": statement["algorithm"], "protocol": statement.get("protocol")},
                "metrics": {
                    "member": statement["member"], "rounds": statement["rounds"], "of": statement["of"],
                    "left_out": statement.get("left_out") or [],
                    "incidents": statement.get("incidents") or [],
                    "statistical_distance": statement.get("statistical_distance"),
                    "account": about,
                },
                "history": [],
                "guarantees": list(reversed(list(unique.values()))),
                "provenance": {"version": __version__, "noise": statement.get("noise", "")},
                "front": summary_page.of_statement(
                    statement, about=about, booked=[] if home is None else _booked(home, statement["run"])
                ),
            }
        )
    )  # fmt: skip


def _booked(home: MemberDirectory, run: str) -> list[dict[str, Any]]:
    """Return, for each lifetime budget of the run's population, what was spent without it and with it."""
    from sottovoce.ledger.lifetime import composed

    book = home.lifetime_ledger
    known = book.runs.get(run)
    if known is None:
        raise DataError(
            f"The book of {home.name} does not know the run {run[:16]}; name the home that ran it."
        )
    all_of_it = [each for each in book.charges if each.population == known.population]
    before = [each for each in all_of_it if each.run != run]
    rows = []
    for limit in book.populations[known.population]:
        spent, adds, total = (
            composed(each, *limit.kind).epsilon(limit.delta) for each in (before, [known], all_of_it)
        )
        rows.append({"epsilon": limit.epsilon, "delta": limit.delta, "adjacency": limit.adjacency,
                     "view": limit.view, "spent": spent, "adds": adds, "total": total})  # fmt: skip
    return rows


def _payload(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command printed under ``--json`` as a record."""
    config = {k: v for k, v in content.items() if isinstance(v, (str, int, float)) and k != "count"}
    made = {
        "name": name, "config": config, "metrics": dict(content), "history": [], "guarantees": [],
        "provenance": {"version": __version__},
    }  # fmt: skip
    return with_front(made)
