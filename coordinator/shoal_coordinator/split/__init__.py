"""Split jobs that this coordinator serves: their files, and one machine for each."""
