"""The explorer: a page that shows leakage on a graph interactively."""
