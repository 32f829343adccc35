"""Taking part in jobs that may go on without their coordinator. Needs the extra `peer`; nothing here is imported before
a node is told to listen.

    porch    where this node can be called, for all its jobs, and who it is among peers
    circle   the others of one job: papers, and the company that they make
    part     the machine of one job, as this process begins it or takes it up
    pump     feeds it
    desk     what must not be forgotten of it
    books    two sums by which the coordinator sees that nothing is lost
"""
