"""Images of vision-language models: decode, scale, place in the token stream, and encode with the vision tower."""
