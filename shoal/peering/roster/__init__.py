"""Membership documents of a peer group: admission, invitations and rosters."""
