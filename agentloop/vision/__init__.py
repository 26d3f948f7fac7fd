"""Images for vision-language models: decoded, scaled, placed in the token stream, and encoded by the vision tower."""
