"""Models: adapters for torch, scikit-learn and linear models, and saved models."""
