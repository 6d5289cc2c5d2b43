"""Federated private ADMM on the breast-cancer data, as a Flower app."""
