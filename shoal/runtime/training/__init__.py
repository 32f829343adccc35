"""Training in a process of its own, for nodes that answer calls: an answer never waits for the learner.

    ipc                the messages between the two processes
    child              the learner's process
    training_process   the process from outside: started, asked, stopped
    remote             a task that runs in the process; started again if the process dies

Models travel as files, all other messages as lines of JSON.
"""
