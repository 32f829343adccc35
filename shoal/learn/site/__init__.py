"""The processes of one node, its ranks, which train one model together."""
