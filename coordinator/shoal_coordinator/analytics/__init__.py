"""Queries over reports and runs: charts, comparisons, exports and influence."""
