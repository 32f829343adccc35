"""`shoal simulate`: a whole job in this process, on a virtual clock."""


def simulate() -> None:
    "later"
