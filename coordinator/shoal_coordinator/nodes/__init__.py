"""Nodes: enrolment, credentials, presence and load shedding."""
