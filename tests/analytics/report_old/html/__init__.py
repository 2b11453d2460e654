"""The page, its parts, and the page in a browser."""
