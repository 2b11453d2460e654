"""The server's web pages: the dashboard, the player, the page that publishes, and the description of the API."""
