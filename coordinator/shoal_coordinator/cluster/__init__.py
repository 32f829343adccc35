"""Several coordinators on one database: the leader, its followers and the jobs each owns."""
