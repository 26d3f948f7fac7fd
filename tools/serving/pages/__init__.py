"""The pages for browsers, as templates: `start.html` and `routes.html`, with the style of both. They load nothing."""
