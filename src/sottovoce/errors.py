"""Every error Sottovoce raises on purpose, in one tree.

::

    SottovoceError
    ├── InvalidInput          a value the caller gave is not usable (also a ValueError)
    │   ├── GraphError        a graph or its gossip matrix
    │   ├── DataError         a file, a data set, a partition
    │   └── ConfigError       a plan file, an agreement, an option
    ├── Refused               the request is understood and will not be carried out
    │   ├── BudgetExceeded    it would spend more than was agreed
    │   ├── BudgetInfeasible  no noise can meet the budget
    │   ├── CannotCompose     guarantees against unlike adversaries, adjacencies or labels
    │   ├── NotAGuarantee     a budget was checked against a label that cannot accept one
    │   └── ReleaseMismatch   what would leave is not what the plan announced
    ├── TrainingDiverged      a run was stopped because its model moves away from the data
    ├── MissingDependency     an optional package is not installed
    ├── ClusterError          the ranks of one owner's cluster cannot work together
    │   └── LostRank          a rank died, froze or failed in the middle
    └── PeerError             what goes wrong between machines
        ├── IdentityError     certificates, pins, signatures
        ├── FrameError        bytes that are not a valid message
        ├── LedgerError       the ledger is missing, damaged, older, unwritable or of another run
        └── TryLater          not possible now; run the same command again later
            └── LostPeer      a neighbor that did not come back

Messages are one sentence: what was expected, what came, what to try. The command line prints the
sentence and exits with 1; commands of a service manager also with 75, try again, and 78, wrong configuration.
"""


class SottovoceError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is that of a command which it ends."""

    exit_code = 1


class InvalidInput(SottovoceError, ValueError):
    """A value given by the caller cannot be used."""


class GraphError(InvalidInput):
    """A graph, its edges or its gossip matrix is not valid."""


class DataError(InvalidInput):
    """A data set, a data file or a partition is not valid."""


class ConfigError(InvalidInput):
    """A plan file, an agreement or an option is not valid."""


class Refused(SottovoceError):
    """The request was understood and will not be carried out."""


class BudgetExceeded(Refused):
    """The release would spend more than was agreed."""


class BudgetInfeasible(Refused):
    """No amount of noise meets the budget."""


class CannotCompose(Refused):
    """Guarantees about unlike things were added."""


class NotAGuarantee(Refused):
    """A budget was checked against a number that is not a guarantee."""


class ReleaseMismatch(Refused):
    """What would leave is not what the plan announced; nothing left."""


class TrainingDiverged(SottovoceError):
    """A run was stopped: its released rows or its scores on test records show that training diverges."""


class MissingDependency(SottovoceError, ImportError):
    """An optional package is needed and not installed."""


class ClusterError(SottovoceError):
    """The ranks of a cluster disagree, or one of them cannot begin."""


class LostRank(ClusterError):
    """A rank died, froze or failed in the middle of a run."""


class PeerError(SottovoceError):
    """Something went wrong between machines."""


class IdentityError(PeerError):
    """A certificate, fingerprint or signature is not the agreed one."""


class FrameError(PeerError):
    """Received bytes are not a valid message."""


class LedgerError(PeerError):
    """The ledger cannot be trusted or written, so nothing may be sent."""


class TryLater(PeerError):
    """Not possible now; run the same command again later."""


class LostPeer(TryLater):
    """A neighbor did not come back in time."""


__all__ = sorted(name for name, kind in globals().items() if isinstance(kind, type))
