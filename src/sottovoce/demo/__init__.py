"""The tour of `sottovoce demo`: sixteen clinics."""
