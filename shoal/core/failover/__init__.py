"""A node's state machine between coordinator and gossip: `FailoverPeer` in `failover_peer`.

    state         behavior                                     it ends when
    coordinated   does the coordinator's tasks (`Worker`)       the coordinator is silent for
                                                                `coordinator_timeout_s`: suspect
                                                                it assigns a task "gossip": gossip
    suspect       continues its task; asks the other peers      the coordinator answers, or a peer can relay:
                  whether they reach the coordinator            coordinated
                                                                a peer has declared a failover, or a quorum misses
                                                                the coordinator for `suspicion_s`: gossip
    gossip        trains and mixes (`GossipPeer`); pings the    the coordinator has answered for `min_gossip_s` and
                  coordinator                                   assigns the hand-back: returning
    returning     begins nothing new, completes exchanges,      its model counts in a new version: coordinated
                  reports its model                             the coordinator is silent again: gossip

Terms keep the past from interfering. A coordinator's tasks carry its term; a node that fails over declares a term above
all that it knows, and ignores older ones from then on: a coordinator that was only cut off, and declarations that were
overtaken. A coordinator that is pinged with a term as high as its own takes a higher one.

No work is lost. A task in progress at the switch is completed and counts as the first local round; an unacknowledged
report is added to the model; and the model is discarded only when a version contains it.
"""
