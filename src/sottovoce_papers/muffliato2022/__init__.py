"""Cyffers, Even, Bellet, Massoulié 2022, "Muffliato"."""
