"""Client of a coordinator for operators and their programs: `shoal.connect`. Commands use it too."""
