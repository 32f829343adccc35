"""Estimators of scikit-learn as learners."""
