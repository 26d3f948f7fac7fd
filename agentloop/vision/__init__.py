"""Pictures on their way into a vision-language model: scaled once, placed in the token stream, turned into features."""
