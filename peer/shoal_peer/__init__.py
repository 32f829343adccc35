"""A peer: a process that learns on its own data and mixes its model with those of others, with no server.

One process, one job: a FastAPI app in, a link out, and between them the two machines of the core (`Gossip`,
`Membership`); training runs in a child process. Requests are acted on in one order, and nothing is told before it is on
the disk; membership, which keeps nothing, is answered at once, whatever the model is going through meanwhile.

    folder     the files of a peer: its papers and its key, what it must not forget      one process at a time
    node       the process: put together, started, told to leave
    app        in: limits, receipt deadlines, who says it, answers                       alone with FastAPI and uvicorn
    listening  the socket that requests come in by
    link       out: a connection for words and one for models, to each peer
    intake     a letter that comes, in pieces: its head checked, its bodies stored
    pump       feeds the machines, carries their effects out
    trainer    what is asked of the training process
    ledger     bytes, by peer and direction
"""
