"""Reproductions of published tables and figures, one package per paper: options in, result out."""
