"""What draws itself in a notebook: the methods are here, the answers in the report layer.

Networks, protocols, views, guarantees, plans and results lie below the layer that makes pages. They take
these methods from `Shown`; `sottovoce.bound` finds the functions, so no module imports upwards.
"""

from __future__ import annotations

from typing import Any

import sottovoce

__all__ = ["Shown"]


class Shown:
    """Something with a picture: notebooks show it as HTML, `plot` draws it with matplotlib.

    Examples
    --------
    >>> import sottovoce as sv
    >>> isinstance(sv.graphs.ring(4), Shown)
    True
    """

    def _repr_html_(self) -> str:
        return str(sottovoce.bound("Shown.html")(self))

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw into matplotlib axes (new ones without ``ax``) and return them.

        The options of each kind are those of `sottovoce.report.plot`.
        """
        return sottovoce.bound("Shown.plot")(self, ax, **options)
