"""Exchanges of models between peers: partners, pacing, topology and final averaging."""
