"""The HTTP server toolkit of coordinators and peers: connections, limits and problems."""
