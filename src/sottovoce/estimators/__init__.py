"""Estimators: `fit` and the scikit-learn estimators."""
