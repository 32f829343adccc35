"""Updates on their way in: uploads, the norm and the layout of each."""
