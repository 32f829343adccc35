"""A training loop of the user's own as a learner: `for task in node.tasks(model)`.

rendezvous     the training thread waits for the thread of the user's loop
learner        the six methods of a learner, answered by the loop
task           what a loop gets: settings, weights, progress, report
node           `tasks`: a generator of tasks, in the user's thread
*_model        the user's model as a tree: a torch module, or arrays
simulated      `shoal.simulated`: the same loop without a server
"""
