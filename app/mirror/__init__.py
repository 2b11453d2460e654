"""Another site: this server holds copies of the channels of another one, and can take its place."""
