"""The provider `remote`: boxes of daemons (`agentloop tools serve --boxes`), on this or other machines."""
