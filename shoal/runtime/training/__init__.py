"""Training in a process of its own, for nodes that others call: an answer never waits for the learner.

    words      what the two processes say to each other
    child      the learner's process
    process    the same from outside: started, asked, told to stop, killed
    remote     an order in hand that is done over there; begun anew when the process dies of it

Models travel as files, everything else in lines of JSON.
"""
