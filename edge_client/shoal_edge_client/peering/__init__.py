"""Jobs that may continue without their coordinator. Needs the extra `peer`, and is imported only by nodes that listen.

edge_peering            the node as a peer, over all its jobs
edge_listener           the listener and the key, for all jobs
failover_pump           the pump of one job, and the parts that it connects
failover_machine        the state machine of one job with its durable state
peer_session            the state machine as this process creates or restores it
node_state, peer_files  durable state of one job
edge_peer_group         trust documents and peer group of one job
coordinator_requests    requests to the coordinator besides polls and reports
handover_download       the model of a gossip task
conservation_sums       two sums that show whether updates are lost or counted twice
relay/, recovery/       the route through a peer; recovery from a lost coordinator
"""
