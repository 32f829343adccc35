"""The program of a peer without a coordinator: it trains on its own data and mixes its model with those of others.

A process takes part in one job: an HTTP server, links to other peers, and two state machines of the core (`GossipPeer`,
`Membership`). Training runs in a child process. State is durable before a message that depends on it is sent.
Membership messages are answered at once, also while the model is in use.

    process           the process: signals, listener, exit code
    peer_process      the peer: started, run, left
    standalone_pump   the pump of its state machine
    peer_status       its status, and the wait for enough peers
    provision, join   folders made by an operator; entry by an invitation
    model_file        the model as a file
    mdns              peers found on the local network

`shoal.peering` has what it shares with the edge client.
"""
