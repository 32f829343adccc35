"""Training in a process of its own, for nodes that answer calls: an answer never waits for the learner.

    ipc                the messages between the two processes
    child              the learner's process
    child_process      that process from outside, as a child of this one
    command_process    that process from outside, where a command has it started on another machine
    relay              the parent of the learner's process on that machine
    folder_channel     the messages between these two, in a shared folder
    training_process   requests to the process, wherever it runs: started, asked, stopped
    remote             a task that runs in the process; started again if the process dies

Models travel as files, all other messages as lines of JSON.
"""
