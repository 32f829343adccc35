"""Recovery from a lost coordinator: signed checkpoints, re-enrolment and the incarnation fence."""
