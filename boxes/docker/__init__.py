"""The provider `docker`: boxes that are containers of a docker engine."""
