"""Membership of peers by SWIM."""
